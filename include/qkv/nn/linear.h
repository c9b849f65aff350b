// Linear: y = x W^T + b, on attention's micro-kernel, whose sums have one order however the work is cut; bf16 in pairs
// or tiles where the CPU has instructions for them, otherwise widened to f32. Bit-identical for any number of threads.
//
// Shapes: M rows (tokens), K = in_features, N = out_features. The last axis of every view has stride 1.
// ShapeError: sizes, strides; that outputs overlap no input is not checked.
#pragma once

#include "qkv/context.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {

struct LinearOptions {
  Index in_features = 0;
  Index out_features = 0;
  bool bias = true;
  std::uint64_t seed = 0;    ///< weight and bias: uniform +-1/sqrt(in_features), as PyTorch
  std::uint32_t stream = 0;  ///< of the seed's numbers, for the weight; the bias has the next one
};

struct LinearGradients;

class QKV_API Linear : public Affine {
 public:
  explicit Linear(const LinearOptions& options);

  /// y [M, N] = x [M, K] W^T + b. Overwrites y, which shares no memory with x. Const: may run concurrently.
  void forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context()) const;

  /// From dy [M, N] and the x [M, K] of forward: dx [M, K] = dy W (null view: not wanted); dW += dy^T x; db += column
  /// sums of dy.
  void backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx,
      Context& context = Context::default_context());

  /// The same on bf16: sums are float, y and dx rounded once; W stays float and is rounded as it is read. Gradients of
  /// W and b are float.
  void forward(View<const BFloat16, 2> x, View<BFloat16, 2> y, Context& context = Context::default_context()) const;
  void backward(View<const BFloat16, 2> x, View<const BFloat16, 2> dy, View<BFloat16, 2> dx,
      Context& context = Context::default_context());

  Index in_features() const { return weight_.size(1); }
  Index out_features() const { return weight_.size(0); }
  /// The gradients, for src/nn.
  LinearGradients own_gradients();
};

/// A linear map without a module, in T = float or BFloat16: sums in f32, y and dx rounded once, parameter gradients in
/// f32. y [M, N] = x [M, K] weight [N, K]^T + bias [N] (null: none). Rows as above; overwrites y. bits: where the
/// context's are kFast, whether a row of y has the same bits for any number of rows beside it.
///
/// Backward: dx [M, K] = dy [M, N] weight (null: not wanted); dweight [N, K] += dy^T x (likewise); dbias [N] += column
/// sums of dy (null: not wanted).
#define QKV_DECLARE(T)                                                                                              \
  QKV_API void linear_forward(View<const T, 2> x, View<const T, 2> weight, View<const float, 1> bias, View<T, 2> y, \
      Context& context = Context::default_context(), Bits bits = Bits::kFast);                                      \
  QKV_API void linear_backward(View<const T, 2> x, View<const T, 2> dy, View<const T, 2> weight, View<T, 2> dx,     \
      View<float, 2> dweight, View<float, 1> dbias, Context& context = Context::default_context());
QKV_DECLARE(float)
QKV_DECLARE(BFloat16)
#undef QKV_DECLARE

}  // namespace qkv::inline v0::nn
