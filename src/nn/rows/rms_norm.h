// Root-mean-square normalisation of heads: y = x / sqrt(mean(x^2) + eps) * weight over the last axis. Zhang 2019,
// arXiv:1910.07467.
#pragma once

#include "qkv/context.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// y from x [B, H, T, D], last strides 1; weight [D]. Means in f64. y may be x. T: float or BFloat16, rounded
/// once.
template <class T>
void rms_norm_forward(View<const T, 4> x, const float* weight, double eps, View<T, 4> y, Context& context);

/// dx from x and dy [B, H, T, D] (may be dy itself); dweight [D] += in one order for any number of threads.
/// `partial_sums` is workspace that keeps its memory.
template <class T> void rms_norm_backward(View<const T, 4> x, View<const T, 4> dy, const float* weight, double eps,
    View<T, 4> dx, float* dweight, Tensor<float>& partial_sums, Context& context);

}  // namespace qkv::inline v0::nn
