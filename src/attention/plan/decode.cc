#include "attention/plan/decode.h"

namespace qkv::inline v0 {

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
  shape.mask_differs = mask_differs_by_head(p.mask);
  return shape;
}

#define QKV_INSTANTIATE(T) template DecodeShape decode_shape(const Problem<T>&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
