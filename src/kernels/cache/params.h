// The table of decode's kernels, and what those are passed that store and read rows of any type.
#pragma once

#include "kernels/attention/params.h"
#include "kernels/keys.h"

namespace qkv {

/// to[r][0..width) = from[r][0..width) rounded once to the type of `to`. Double is stored as double, all else is not.
struct StoreRows {
  const void* from;
  StoredType from_type;  // of tensors: no integers
  void* to;
  StoredType to_type;
  float* scales;  // [count]; kInt8 only
  Index from_stride, to_stride, count, width;
};

struct CacheTable {
  DecodeKernels<float> f32;
  DecodeKernels<double> f64;
  void (*store)(const StoreRows&);
  /// Positions [begin, begin + count) of one matrix of a cache as floats, or doubles where it stores such; rows follow
  /// each other.
  void (*read)(const HeadKeys&, const KeyMatrix&, Index begin, Index count, Index width, void* to);
};

}  // namespace qkv
