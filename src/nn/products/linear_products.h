// The three products of a linear map, cut into tiles over the context's threads. No cut changes a sum, so results are
// bit-identical for any number of threads, and in bf16 on CPUs that multiply its pairs, or with Bits::kInvariant, a
// row's for any number of rows beside it.
//
// Shapes: M rows (tokens), K inputs, N outputs. Views have last stride 1 and any row stride.
#pragma once

#include <algorithm>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// T: float or BFloat16, whose sums are floats that are rounded once.
template <class T> struct LinearWeights {
  View<const T, 2> weight;         // [N, K]
  const float* bias = nullptr;     // [N] or null
  View<const float, 2> wide = {};  // bf16 only, instead of weight: rounded to bf16 as it is read
  bool invariant = false;  // forward's rows have the bits that Bits::kInvariant promises, whatever the context's

  Index columns() const { return wide.is_null() ? weight.size(1) : wide.size(1); }
};

/// Parameters [N, K] and [N] (empty: no bias), which are floats, as products of T read them.
template <class T> LinearWeights<T> weights_of(const Tensor<float>& weight, const Tensor<float>& bias) {
  const float* added = bias.count() == 0 ? nullptr : bias.data();
  if constexpr (std::is_same_v<T, float>) {
    return {weight, added};
  } else {
    return {{}, added, weight};
  }
}

struct LinearGradients {
  View<float, 2> dweight;  // [N, K], added to; null: not wanted
  float* dbias = nullptr;  // [N] or null, added to
};

/// Those of two axes are exported for qkv::lm.
/// linear_forward: y [M, N] = x [M, K] weight^T + bias.
/// linear_backward: dx [M, K] = dy [M, N] weight (null: not wanted);  dweight += dy^T x;  dbias += sum over rows of dy.
/// One parallel region. Over the tokens of [B, T, ...]: one product when the rows are evenly spaced, otherwise one per
/// sequence. bf16 without instructions for its products (kernels/layers/params.h): the float products of widened rows.
#define QKV_DECLARE(T)                                                                                              \
  QKV_API void linear_forward(View<const T, 2> x, const LinearWeights<T>& weights, View<T, 2> y, Context& context); \
  void linear_forward(View<const T, 3> x, const LinearWeights<T>& weights, View<T, 3> y, Context& context);         \
  QKV_API void linear_backward(View<const T, 2> x, View<const T, 2> dy, const LinearWeights<T>& weights,            \
      View<T, 2> dx, const LinearGradients& gradients, Context& context);                                           \
  void linear_backward(View<const T, 3> x, View<const T, 3> dy, const LinearWeights<T>& weights, View<T, 3> dx,     \
      const LinearGradients& gradients, Context& context);
QKV_DECLARE(float)
QKV_DECLARE(BFloat16)
#undef QKV_DECLARE

/// Whether all rows of a [B, T, E] have one stride and do not overlap: what one product over B * T rows needs.
template <class T> bool has_plain_rows(View<T, 3> x) {
  if (x.size(2) > 1 && x.stride(2) != 1) return false;
  if (x.size(1) > 1 && x.stride(1) < x.size(2)) return false;
  return x.size(0) <= 1 || (x.size(1) > 1 ? x.stride(0) == x.size(1) * x.stride(1) : x.stride(0) >= x.size(2));
}

/// The row stride that a product is passed: that of a single row may be anything.
template <class T> Index row_stride(View<T, 2> rows) {
  return rows.size(0) > 1 ? rows.stride(0) : std::max<Index>(rows.size(1), 1);
}

/// A [B, T, E] with evenly spaced rows as [B * T, E].
template <class T> View<T, 2> plain_rows(View<T, 3> x) {
  const Index stride = x.size(1) > 1 ? x.stride(1) : x.size(0) > 1 ? x.stride(0) : x.size(2);
  return {x.data(), {x.size(0) * x.size(1), x.size(2)}, {stride, 1}};
}

}  // namespace qkv::inline v0::nn
