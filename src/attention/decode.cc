// One work item per (batch, key/value head, part of the keys), in the order of keys. What a part gives is merged in turn into
// one state that all items share: memory does not grow with the keys, and the order of merging with neither threads nor time.
#include "attention/decode.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "attention/empty_rows.h"
#include "attention/turns.h"
#include "core/region.h"

namespace qkv {
inline namespace v0 {
namespace {

/// Reading a byte takes as long as this many operations, when the cache lies in memory.
constexpr double kFlopsPerByte = 6;

template <class T>
struct DecodeJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<T, 4> out;
  View<Sum, 3> lse;  // null: not wanted
  DecodeShape shape;
  bool mask_differs;
  std::byte* shared;  // the state of the head whose parts are being merged
  std::byte* workers;
  Turn& turn;

  DecodeGroup<T> group(Index b, Index g, Sum* row_lse) const {
    const Index h = g * p.group_size();
    DecodeGroup<T> t{};
    t.scores = p.scores(b, h);
    t.v = p.v.data() + b * p.v.stride(0) + g * p.v.stride(1);
    t.out = out.data() + b * out.stride(0) + h * out.stride(1);
    t.lse = row_lse;
    t.q_head_stride = p.q.stride(1);
    t.bias_head_stride = p.bias.is_null() ? 0 : repeat_stride(p.bias, 1);
    t.v_stride = p.v.stride(2);
    t.v_head_dim = p.v_head_dim;
    t.out_head_stride = out.stride(1);
    t.out_stride = out.stride(2);
    t.q_len = p.q_len;
    t.group_size = p.group_size();
    t.mask_differs = mask_differs;
    return t;
  }

  void finish(const DecodeGroup<T>& t, Index b, Index g, std::byte* state) const {
    p.kernels->decode.finish(t, state);
    for (Index n = 0; n < p.group_size(); ++n) {
      const Index h = g * p.group_size() + n;
      const Sum* row_lse = t.lse + n * p.q_len;
      if (p.rows_can_be_empty()) fill_empty_out(p, b, h, 0, p.q_len, row_lse, t.out + n * t.out_head_stride, t.out_stride);
      if (lse.data() == nullptr) continue;
      for (Index i = 0; i < p.q_len; ++i) lse(b, h, i) = row_lse[i];
    }
  }

  void run(Index item, int worker) const {
    const Index head = item / shape.parts, part = item % shape.parts, b = head / p.num_kv_heads, g = head % p.num_kv_heads;
    Sum row_lse[kDecodeRowLimit];
    const DecodeGroup<T> t = group(b, g, row_lse);
    Index begin = 0, end = p.kv_len;
    if (p.mask.node != nullptr) mask_key_range(&p.mask, b, g * p.group_size(), 0, p.q_len, &begin, &end);
    const Index last = begin < end ? (end - 1) / shape.part_keys : 0, first = begin < end ? begin / shape.part_keys : 0;
    std::byte* scratch = workers + static_cast<std::size_t>(worker) * shape.worker_bytes();
    std::byte* state = scratch + shape.scratch_bytes;
    const DecodeKernels<T>& kernels = p.kernels->decode;
    const bool live = first <= part && part <= last;
    const Index k_begin = part * shape.part_keys;
    if (live) kernels.part(t, k_begin, std::min(k_begin + shape.part_keys, p.kv_len), scratch, state);
    if (shape.parts == 1) {
      finish(t, b, g, state);
      return;
    }
    wait_for_turn(turn, item);
    if (live && part == first) {
      std::memcpy(shared, state, shape.state_bytes);
    } else if (live) {
      kernels.merge(t, shared, state);
    }
    if (live && part == last) finish(t, b, g, shared);
    pass_turn(turn, item);
  }
};

}  // namespace

template <class T>
DecodeShape decode_shape(const Problem<T>& p) {
  const DecodeKernels<T>& kernels = p.kernels->decode;
  DecodeShape shape{};
  shape.rows = p.q_len * p.group_size();
  shape.chunk = kernels.chunk(p.head_dim, p.v_head_dim);
  shape.part_keys = kernels.part_keys(p.head_dim, p.v_head_dim);
  shape.parts = (p.kv_len + shape.part_keys - 1) / shape.part_keys;
  shape.scratch_bytes = kernels.scratch_bytes(shape.rows, p.head_dim, p.v_head_dim);
  shape.state_bytes = kernels.state_bytes(shape.rows, p.v_head_dim);
  return shape;
}

template <class T>
void decode_forward(const Problem<T>& p, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context) {
  const DecodeShape shape = decode_shape(p);
  const Index items = p.batch * p.num_kv_heads * shape.parts;
  bool mask_differs = false;
  if (p.mask.node != nullptr) {
    for (const Dense& leaf : p.mask.node->dense) mask_differs |= leaf.values.size(1) > 1;
  }
  const auto threads = static_cast<std::size_t>(context.threads());
  const ScratchLease scratch = borrow_scratch(context, shape.state_bytes + threads * shape.worker_bytes());
  Turn turn{0};
  const DecodeJob<T> job{p, out, lse, shape, mask_differs, scratch.data(), scratch.data() + shape.state_bytes, turn};
  const double rows = static_cast<double>(p.batch * p.num_kv_heads) * static_cast<double>(p.kv_len);
  const double width = static_cast<double>(p.head_dim + p.v_head_dim);
  const double flops = std::max(p.pairs() * 2.0 * width, rows * width * static_cast<double>(sizeof(T)) * kFlopsPerByte);
  parallel_for_flops(context, items, flops, [&job](Index item, int worker) { job.run(item, worker); });
}

#define QKV_INSTANTIATE(T)                              \
  template DecodeShape decode_shape(const Problem<T>&); \
  template void decode_forward(const Problem<T>&, const View<T, 4>&, const View<Accumulator<T>, 3>&, Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace v0
}  // namespace qkv
