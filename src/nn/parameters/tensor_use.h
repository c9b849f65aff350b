// Small helpers of layers for tensors.
#pragma once

#include <algorithm>

#include "qkv/tensor.h"

namespace qkv::inline v0::nn {

/// Zeros of the same sizes; no tensor (rank 0) for none.
inline Tensor<float> zeros_like(const Tensor<float>& tensor) {
  return tensor.rank() == 0 ? Tensor<float>() : Tensor<float>(tensor.sizes());
}

inline Tensor<float> clone_of(const Tensor<float>& tensor) {
  return tensor.rank() == 0 ? Tensor<float>() : tensor.clone();
}

/// to = from, [B, T, E]; any strides.
template <class T> void copy(View<const T, 3> from, View<T, 3> to) {
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index t = 0; t < from.size(1); ++t) {
      const T* row = from.data() + b * from.stride(0) + t * from.stride(1);
      T* target = to.data() + b * to.stride(0) + t * to.stride(1);
      if (from.stride(2) == 1 && to.stride(2) == 1) {
        std::copy_n(row, from.size(2), target);
      } else {
        for (Index e = 0; e < from.size(2); ++e) target[e * to.stride(2)] = row[e * from.stride(2)];
      }
    }
  }
}

}  // namespace qkv::inline v0::nn
