#include "attention/plan/choose.h"

#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// Rows of a group that are worth grouping: lanes of a strip on the widest vectors.
constexpr Index kGroupRows = 32;

/// Whether rows [head][query] of [B, H, Tq, ..] lie at one stride. Those of a null view do.
bool rows_follow(const AnyView& x) { return x.size(2) == 1 || x.stride(1) == x.size(2) * x.stride(2); }

/// [B, H, Tq, ..] as [B, Hkv, group * Tq, ..]; null stays null.
AnyView group_rows(AnyView x, Index group) {
  if (x.size(2) == 1) x.strides[2] = x.stride(1);
  x.sizes[1] /= group;
  x.sizes[2] *= group;
  x.strides[1] *= group;
  return x;
}

/// Rows are added up to multiples of `step` of the whole problem.
StripRows strip_rows(const Problem& p, Index step) {
  if (p.q_len == 0) return {0, 0, false};
  const Index begin = p.first_query / step * step;
  const Index end = std::min((p.first_query + p.q_len + step - 1) / step * step, p.queries);
  return {p.first_query - begin, end - begin, end - begin != p.q_len};
}

/// The limits of decode's kernels for `rows` rows.
KeyParts parts_of(const Problem& p, Index rows) {
  return with_sums(p.q.type, [&](auto sum) {
    const DecodeKernels<decltype(sum)>& kernels = p.decode<decltype(sum)>();
    const StoredType keys = p.keys.type();
    KeyParts parts{};
    parts.rows = rows;
    parts.chunk = kernels.chunk(keys, p.head_dim, p.v_head_dim);
    parts.part_keys = kernels.part_keys(keys, p.head_dim, p.v_head_dim);
    parts.scratch_bytes = round_to_line(kernels.scratch_bytes(keys, rows, p.head_dim, p.v_head_dim));
    parts.state_bytes = round_to_line(kernels.state_bytes(rows, p.v_head_dim));
    return parts;
  });
}

}  // namespace

Listed::Listed(const Problem& p) : p_(p), lists_(p.invariant ? nullptr : key_lists_of(p.mask.node)) {
  if (lists_ == nullptr) return;
  block_heads_ = lists_->block_heads(*p.mask.node, p.group_size(), p.heads);
  filters_ = p.mask.node->parts.size() > 1 || (p.mask.shown != nullptr && !p.mask.shown->all());
  applies_ = serves_options() && p.keys.rows_can_be_pages() && pays();
}

HeadKeys Listed::rows(Index b, Index h0, Index i, Index begin, Index end, Index* pages, Index* keys) const {
  const Index whole_head = p_.first_head + h0, query = p_.first_query + i;  // as masks count them
  const std::span<const std::int32_t> all = lists_->row(b, whole_head, p_.heads, query);
  Index count = 0;
  for (auto key = std::lower_bound(all.begin(), all.end(), begin); key != all.end() && *key < end; ++key) {
    if (filters_ && !mask_keeps(p_.mask, b, whole_head, query, *key)) continue;
    pages[count++] = *key;
  }
  if (keys != nullptr) std::copy_n(pages, count, keys);
  return p_.keys.rows(b, h0 / p_.group_size(), pages, count);
}

How choose(const Problem& p, const Listed& lists) {
  if (lists.applies()) return How::kLists;
  // On a cache at any length: a sequence is then bit-identical alone and among longer ones.
  const Index rows = p.queries * p.group_size(), min_keys = p.keys.is_cache() ? 1 : kDecodeMinKeys;
  return !p.invariant && rows >= 1 && rows <= kDecodeRowLimit && p.kv_len >= min_keys ? How::kDecode : How::kTiles;
}

Positions live_keys(const Problem& p, Index b, Index h) {
  Positions live{0, p.length(b)};
  const TileMask mask = p.tile_mask(b, h);
  if (mask.key_range != nullptr) mask.key_range(mask.mask, b, mask.head, 0, p.q_len, &live.begin, &live.end);
  return live;
}

KeyParts decode_parts(const Problem& p, Index first_sequence, Index sequences) {
  KeyParts parts = parts_of(p, p.q_len * p.group_size());
  parts.mask_differs = mask_differs_by_head(p.mask);
  parts.parts = 1;
  const bool alike = p.mask.keeps_all() && !p.keys.is_cache();  // all keys of every head
  for (Index b = first_sequence; b < first_sequence + (alike ? 1 : sequences); ++b) {
    for (Index h = 0; h < (parts.mask_differs ? p.num_heads : 1); h += p.group_size()) {
      const PartRange range(live_keys(p, b, h), parts.part_keys);
      parts.parts = std::max(parts.parts, range.last - range.first + 1);
    }
  }
  return parts;
}

KeyParts list_parts(const Problem& p, const Listed& lists) {
  if (lists.block_heads() > kDecodeRowLimit && p.sinks.is_null()) {
    const Index tile = with_sums(p.q.type,
        [&](auto sum) { return p.kernels<decltype(sum)>().copied_query_tile(p.head_dim, p.v_head_dim, false); });
    const Index rows = std::min({lists.block_heads(), tile, kMaxQueryTile});
    return {.rows = rows,
        .chunk = p.key_tile,
        .part_keys = lists.longest(),
        .parts = 1,
        .scratch_bytes = round_to_line(p.forward_scratch_bytes(rows, true)),
        .state_bytes = 0,
        .mask_differs = false};
  }
  KeyParts parts = parts_of(p, std::min(lists.block_heads(), kDecodeRowLimit));
  parts.parts = std::max<Index>(1, (lists.longest() + parts.part_keys - 1) / parts.part_keys);
  return parts;
}

bool groups_rows(const Problem& p, const Outputs& outputs) {
  const bool same = p.sinks.is_null() && p.position.zero == nullptr && p.score_mod == nullptr &&
                    p.dropout_threshold == 0 && !mask_differs_by_head(p.mask) && outputs.weights.data == nullptr;
  const bool bias_follows =
      p.bias.is_null() || repeat_stride(p.bias, 1) == p.q_len * repeat_stride(p.bias, 2) || p.q_len == 1;
  return p.invariant && !p.is_part() && p.group_size() > 1 && p.q_len > 0 && p.q_len * p.group_size() <= kGroupRows &&
         same && bias_follows && rows_follow(p.q) && rows_follow(outputs.out) && rows_follow(outputs.lse) &&
         rows_follow(outputs.lse_low);
}

Problem grouped_problem(const Problem& p) {
  const Index group = p.group_size();
  Problem grouped = p;
  grouped.q = group_rows(p.q, group);
  grouped.num_heads = grouped.heads = p.num_kv_heads;
  grouped.q_len = grouped.queries = group * p.q_len;
  grouped.group_mask = {&p.mask, p.q_len};
  if (!p.bias.is_null()) {  // an axis of size 1 repeats
    const Index by_head = repeat_stride(p.bias, 1), by_row = p.q_len == 1 ? by_head : repeat_stride(p.bias, 2);
    grouped.bias.sizes = {p.batch, p.num_kv_heads, grouped.q_len, p.kv_len};
    grouped.bias.strides = {repeat_stride(p.bias, 0), group * by_head, by_row, repeat_stride(p.bias, 3)};
  }
  return grouped;
}

Outputs grouped_outputs(const Outputs& x, Index group) {
  return {.out = group_rows(x.out, group), .lse = group_rows(x.lse, group), .lse_low = group_rows(x.lse_low, group)};
}

StripRows rows_of_forward(const Problem& p, bool wants_out, bool wants_weights) {
  if (!p.is_part()) return {0, p.q_len, false};
  const How how = wants_out ? choose(p, Listed(p)) : How::kTiles;
  if (how == How::kLists && !wants_weights) return strip_rows(p, 1);
  return strip_rows(p, how == How::kDecode ? p.queries : p.strip);
}

StripRows rows_of_backward(const Problem& p) {
  if (!p.is_part()) return {0, p.q_len, false};
  return strip_rows(p, p.invariant ? p.sum_queries : p.scale >= 0 ? p.strip : p.query_tile);
}

}  // namespace qkv::inline v0
