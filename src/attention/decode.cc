// One work item per (batch, key/value head, part of the keys), in the order of keys. What a part gives is merged in turn into
// one state that all items share: memory does not grow with the keys, and the order of merging with neither threads nor time.
#include <algorithm>
#include <new>

#include "attention/decode_job.h"
#include "core/threads/region.h"

namespace qkv {
inline namespace v0 {
namespace {

/// Reading a byte takes as long as this many operations, when the cache lies in memory.
constexpr double kFlopsPerByte = 6;

}  // namespace

template <class T>
DecodeShape decode_shape(const Problem<T>& p) {
  const DecodeKernels<T>& kernels = p.kernels->decode;
  DecodeShape shape{};
  shape.rows = p.q_len * p.group_size();
  if (p.cache == nullptr) {
    shape.chunk = kernels.chunk(p.head_dim, p.v_head_dim);
    shape.part_keys = kernels.part_keys(p.head_dim, p.v_head_dim);
    shape.scratch_bytes = kernels.scratch_bytes(shape.rows, p.head_dim, p.v_head_dim);
  } else {
    const StoredType stored = stored_type(p.cache->storage());
    shape.chunk = p.cache_kernels->decode_chunk(stored, p.head_dim, p.v_head_dim);
    shape.part_keys = p.cache_kernels->decode_part_keys(stored, p.head_dim, p.v_head_dim);
    shape.scratch_bytes = p.cache_kernels->decode_scratch_bytes(stored, shape.rows, p.head_dim, p.v_head_dim);
  }
  shape.parts = (p.kv_len + shape.part_keys - 1) / shape.part_keys;
  shape.state_bytes = kernels.state_bytes(shape.rows, p.v_head_dim);
  return shape;
}

template <class T>
void decode_forward(const Problem<T>& p, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context) {
  const DecodeShape shape = decode_shape(p);
  const Index items = p.batch * p.num_kv_heads * shape.parts;
  const auto threads = static_cast<std::size_t>(context.threads());
  const ScratchLease scratch = borrow_scratch(context, shape.state_bytes + threads * shape.worker_bytes());
  Turn turn{0};
  const DecodeJob<T> job{p,   out, lse, shape, mask_differs_by_head(p.mask), scratch.data(), scratch.data() + shape.state_bytes,
                         turn};
  const double rows = static_cast<double>(p.batch * p.num_kv_heads) * static_cast<double>(p.kv_len);
  const double width = static_cast<double>(p.head_dim + p.v_head_dim);
  const double flops = std::max(p.pairs() * 2.0 * width, rows * width * static_cast<double>(sizeof(T)) * kFlopsPerByte);
  parallel_for_flops(context, items, flops, [&job](Index item, int worker) {
    const Index head = item / job.shape.parts, heads = job.p.num_kv_heads;
    job.run(item, head / heads, head % heads, item % job.shape.parts, worker);
  });
}

#define QKV_INSTANTIATE(T)                              \
  template DecodeShape decode_shape(const Problem<T>&); \
  template void decode_forward(const Problem<T>&, const View<T, 4>&, const View<Accumulator<T>, 3>&, Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace v0
}  // namespace qkv
