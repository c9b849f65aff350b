// Normalisation of rows, y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias over the last axis (layer
// norm), or with a mean of 0 and no bias (root-mean-square norm; Zhang 2019, arXiv:1910.07467).
#pragma once

#include "qkv/context.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// weight [D], and for the layer norm bias [D] or null.
struct NormWeights {
  const float* weight;
  const float* bias = nullptr;
  double eps = 0;
  bool centred = false;  ///< a layer norm
};

/// y from x [B, H, T, D], last strides 1. Means in f64. y may be x. T: float or BFloat16, rounded once.
template <class T> void norm_forward(View<const T, 4> x, const NormWeights& norm, View<T, 4> y, Context& context);

/// dx from x and dy [B, H, T, D] (may be dy itself); dweight [D] and, where it is not null, dbias [D] += in one order
/// for any number of threads. `partial_sums` is workspace that keeps its memory.
template <class T> void norm_backward(View<const T, 4> x, View<const T, 4> dy, const NormWeights& norm, View<T, 4> dx,
    float* dweight, float* dbias, Tensor<float>& partial_sums, Context& context);

}  // namespace qkv::inline v0::nn
