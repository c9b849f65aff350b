// The three products of a linear map, cut into tiles over the context's threads. f32: our own kernel, whose sums no cut
// changes; bf16: oneDNN, one call per tile, with tiles that depend on the shape alone. So results are bit-identical for any
// number of threads. Not: checks (the layers' job), storage.
//
// Shapes: M rows (tokens), K inputs, N outputs. Views have last stride 1 and any row stride.
#pragma once

#include <algorithm>

#include "qkv/context.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

struct LinearWeights {
  View<const float, 2> weight;  // [N, K]
  const float* bias = nullptr;  // [N] or null
};

struct LinearGradients {
  View<float, 2> dweight;  // [N, K], added to
  float* dbias = nullptr;  // [N] or null, added to
};

/// y [M, N] = x [M, K] weight^T + bias
void linear_forward(View<const float, 2> x, const LinearWeights& weights, View<float, 2> y, Context& context);

/// dx [M, K] = dy [M, N] weight (null: not wanted);  dweight += dy^T x;  dbias += sum over rows of dy. One parallel region.
void linear_backward(View<const float, 2> x, View<const float, 2> dy, const LinearWeights& weights, View<float, 2> dx,
                     const LinearGradients& gradients, Context& context);

/// The same on bf16: sums in f32, y and dx rounded once, parameter gradients and bias in f32.
struct Bf16Weights {
  View<const BFloat16, 2> weight;  // [N, K]
  const float* bias = nullptr;     // [N] or null
};

/// Which code computes: oneDNN where it has native bf16 products for this CPU, otherwise the f32 kernel on widened rows. Tests
/// choose one.
enum class Bf16Products { kAutomatic, kOneDnn, kWidened };

void linear_forward(View<const BFloat16, 2> x, const Bf16Weights& weights, View<BFloat16, 2> y, Context& context,
                    Bf16Products products = Bf16Products::kAutomatic);
void linear_backward(View<const BFloat16, 2> x, View<const BFloat16, 2> dy, const Bf16Weights& weights, View<BFloat16, 2> dx,
                     const LinearGradients& gradients, Context& context, Bf16Products products = Bf16Products::kAutomatic);

/// Whether all rows of a [B, T, E] have one stride and do not overlap: what one product over B * T rows needs.
template <class T>
bool has_plain_rows(View<T, 3> x) {
  if (x.size(2) > 1 && x.stride(2) != 1) return false;
  if (x.size(1) > 1 && x.stride(1) < x.size(2)) return false;
  return x.size(0) <= 1 || (x.size(1) > 1 ? x.stride(0) == x.size(1) * x.stride(1) : x.stride(0) >= x.size(2));
}

/// The row stride that a product is passed: that of a single row may be anything.
template <class T>
Index row_stride(View<T, 2> rows) {
  return rows.size(0) > 1 ? rows.stride(0) : std::max<Index>(rows.size(1), 1);
}

/// A [B, T, E] with evenly spaced rows as [B * T, E].
template <class T>
View<T, 2> plain_rows(View<T, 3> x) {
  const Index stride = x.size(1) > 1 ? x.stride(1) : x.size(0) > 1 ? x.stride(0) : x.size(2);
  return {x.data(), {x.size(0) * x.size(1), x.size(2)}, {stride, 1}};
}

/// The same over the tokens of [B, T, ...]: one product when the rows are evenly spaced, otherwise one per sequence.
void linear_forward(View<const float, 3> x, const LinearWeights& weights, View<float, 3> y, Context& context);
void linear_backward(View<const float, 3> x, View<const float, 3> dy, const LinearWeights& weights, View<float, 3> dx,
                     const LinearGradients& gradients, Context& context);

}  // namespace qkv::inline v0::nn
