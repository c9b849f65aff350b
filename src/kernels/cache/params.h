// What the kernels on key/value caches are passed, as plain data, and their table. T is the storage type of q and out; that of
// the cache is known at run time.
#pragma once

#include "kernels/attention/params.h"
#include "kernels/keys.h"

namespace qkv {

/// Decode on a cache.
template <class T>
struct CacheKernels {
  /// As in DecodeKernels<T>, whose merge, finish and state these share.
  Index (*decode_chunk)(StoredType, Index head_dim, Index v_head_dim);
  Index (*decode_part_keys)(StoredType, Index head_dim, Index v_head_dim);
  std::size_t (*decode_scratch_bytes)(StoredType, Index rows, Index head_dim, Index v_head_dim);
  void (*decode_part)(const DecodeGroup<T>&, const HeadKeys&, Index k_begin, Index k_end, void* scratch, void* state);
};

/// to[r][0..width) = from[r][0..width) rounded once to the type of `to`. Double is stored as double, all else is not.
struct StoreRows {
  const void* from;
  StoredType from_type;  // not kInt8
  void* to;
  StoredType to_type;
  float* scales;  // [count]; kInt8 only
  Index from_stride, to_stride, count, width;
};

struct CacheTable {
  CacheKernels<float> f32;
  CacheKernels<double> f64;
  CacheKernels<BFloat16> bf16;
  CacheKernels<Float16> f16;
  void (*store)(const StoreRows&);
  /// Positions [begin, begin + count) of one matrix of a cache as floats, or doubles where it stores such; rows follow each
  /// other.
  void (*read)(const HeadKeys&, const KeyMatrix&, Index begin, Index count, Index width, void* to);
};

}  // namespace qkv
