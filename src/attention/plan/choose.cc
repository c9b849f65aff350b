#include "attention/plan/choose.h"

#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// Rows of a group that are worth grouping: lanes of a strip on the widest vectors.
constexpr Index kGroupRows = 32;

/// Whether rows [head][query] of [B, H, Tq, ..] lie at one stride. Those of a null view do.
template <class T, int kRank>
bool rows_follow(const View<T, kRank>& x) {
  return x.size(2) == 1 || x.stride(1) == x.size(2) * x.stride(2);
}

/// Rows are added up to multiples of `step` of the whole problem.
template <class T>
StripRows strip_rows(const Problem<T>& p, Index step) {
  if (p.q_len == 0) return {0, 0, false};
  const Index begin = p.first_query / step * step;
  const Index end = std::min((p.first_query + p.q_len + step - 1) / step * step, p.queries);
  return {p.first_query - begin, end - begin, end - begin != p.q_len};
}

}  // namespace

template <class T>
KeyParts decode_parts(const Problem<T>& p) {
  const DecodeKernels<Accumulator<T>>& kernels = *p.decode;
  KeyParts parts{};
  parts.rows = p.q_len * p.group_size();
  parts.chunk = kernels.chunk(p.stored(), p.head_dim, p.v_head_dim);
  parts.part_keys = kernels.part_keys(p.stored(), p.head_dim, p.v_head_dim);
  parts.scratch_bytes = kernels.scratch_bytes(p.stored(), parts.rows, p.head_dim, p.v_head_dim);
  parts.parts = (p.kv_len + parts.part_keys - 1) / parts.part_keys;
  parts.state_bytes = kernels.state_bytes(parts.rows, p.v_head_dim);
  parts.mask_differs = mask_differs_by_head(p.mask);
  return parts;
}

template <class T>
KeyParts list_parts(const Problem<T>& p, const Listed<T>& lists) {
  const DecodeKernels<Accumulator<T>>& kernels = *p.decode;
  KeyParts parts{};
  if (lists.block_heads() > kDecodeRowLimit && p.sinks.is_null()) {
    parts.rows = std::min({lists.block_heads(), p.kernels->copied_query_tile(p.head_dim, p.v_head_dim), kMaxQueryTile});
    parts.chunk = p.key_tile;
    parts.part_keys = lists.longest();
    parts.parts = 1;
    parts.scratch_bytes = round_to_line(p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim, parts.rows, true));
    return parts;
  }
  parts.rows = std::min(lists.block_heads(), kDecodeRowLimit);
  parts.chunk = kernels.chunk(p.stored(), p.head_dim, p.v_head_dim);
  parts.part_keys = kernels.part_keys(p.stored(), p.head_dim, p.v_head_dim);
  parts.parts = std::max<Index>(1, (lists.longest() + parts.part_keys - 1) / parts.part_keys);
  parts.scratch_bytes = round_to_line(kernels.scratch_bytes(p.stored(), parts.rows, p.head_dim, p.v_head_dim));
  parts.state_bytes = round_to_line(kernels.state_bytes(parts.rows, p.v_head_dim));
  return parts;
}

template <class T>
bool groups_rows(const Problem<T>& p, const AttentionOutputs<T>& outputs) {
  const bool same = p.sinks.is_null() && p.position.zero == nullptr && p.score_mod == nullptr && p.dropout_threshold == 0 &&
                    !mask_differs_by_head(p.mask) && outputs.weights.data() == nullptr;
  const bool bias_follows = p.bias.is_null() || repeat_stride(p.bias, 1) == p.q_len * repeat_stride(p.bias, 2) || p.q_len == 1;
  return p.invariant && !p.placed() && p.group_size() > 1 && p.q_len > 0 && p.q_len * p.group_size() <= kGroupRows && same &&
         bias_follows && rows_follow(p.q) && rows_follow(outputs.out) && rows_follow(outputs.lse) &&
         rows_follow(outputs.lse_low);
}

template <class T>
Problem<T> grouped_problem(const Problem<T>& p) {
  const Index group = p.group_size();
  Problem<T> grouped = p;
  grouped.q = group_rows(p.q, group);
  grouped.num_heads = grouped.heads = p.num_kv_heads;
  grouped.q_len = grouped.queries = group * p.q_len;
  grouped.group_mask = {&p.mask, p.q_len};
  if (!p.bias.is_null()) {  // an axis of size 1 repeats
    const View<const Accumulator<T>, 4>& bias = p.bias;
    const Index by_head = repeat_stride(bias, 1), by_row = p.q_len == 1 ? by_head : repeat_stride(bias, 2);
    grouped.bias = {bias.data(),
                    {p.batch, p.num_kv_heads, grouped.q_len, p.kv_len},
                    {repeat_stride(bias, 0), group * by_head, by_row, repeat_stride(bias, 3)}};
  }
  return grouped;
}

template <class T>
StripRows rows_of_forward(const Problem<T>& p, bool wants_out, bool wants_weights) {
  if (!p.placed()) return {0, p.q_len, false};
  const How how = wants_out ? choose(p, Listed<T>(p)) : How::kTiles;
  if (how == How::kLists && !wants_weights) return strip_rows(p, 1);
  return strip_rows(p, how == How::kDecode ? p.queries : p.kernels->strip);
}

template <class T>
StripRows rows_of_backward(const Problem<T>& p) {
  if (!p.placed()) return {0, p.q_len, false};
  return strip_rows(p, p.scale >= 0 ? p.kernels->strip : p.query_tile);
}

#define QKV_INSTANTIATE(T)                                                  \
  template KeyParts decode_parts(const Problem<T>&);                        \
  template KeyParts list_parts(const Problem<T>&, const Listed<T>&);        \
  template bool groups_rows(const Problem<T>&, const AttentionOutputs<T>&); \
  template Problem<T> grouped_problem(const Problem<T>&);                   \
  template StripRows rows_of_forward(const Problem<T>&, bool, bool);        \
  template StripRows rows_of_backward(const Problem<T>&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
