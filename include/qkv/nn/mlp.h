// GELU, exact (no tanh), SiLU, and the two-layer perceptron of a transformer block: y = W2 gelu(W1 x + b1) + b2.
#pragma once

#include "qkv/nn/linear.h"

namespace qkv::inline v0::nn {

/// y = x * Phi(x), Phi the normal distribution function. [M, E]; y may be x.
QKV_API void gelu_forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context());
/// dx = dy * (Phi(x) + x * phi(x)), phi the normal density. [M, E]; dx may be dy.
QKV_API void gelu_backward(
    View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context = Context::default_context());

/// y = x / (1 + e^-x). [M, E]; y may be x.
QKV_API void silu_forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context());
/// dx = dy s (1 + x (1 - s)), s = 1 / (1 + e^-x). [M, E]; dx may be dy.
QKV_API void silu_backward(
    View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context = Context::default_context());

struct MlpOptions {
  Index embed_dim = 0;
  Index hidden_dim = 0;  ///< 0: 4 * embed_dim
  bool bias = true;
  std::uint64_t seed = 0;
};

/// Values for backward; reused from step to step it does not allocate.
struct MlpSaved {
  Tensor<float> hidden;      // [M, F], before GELU
  Tensor<float> activated;   // [M, F]
  Tensor<float> dactivated;  // [M, F], workspace of backward
};

class QKV_API Mlp : public Module {
 public:
  explicit Mlp(const MlpOptions& options);

  /// x, y [M, E]
  void forward(
      View<const float, 2> x, View<float, 2> y, MlpSaved& saved, Context& context = Context::default_context()) const;
  /// dx [M, E] overwritten (null: not wanted); parameter gradients +=.
  void backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, MlpSaved& saved,
      Context& context = Context::default_context());

  /// c_fc.weight c_fc.bias c_proj.weight c_proj.bias
  std::vector<Parameter> parameters() override;

 private:
  Linear expand_;    // [F, E]
  Linear contract_;  // [E, F]
};

}  // namespace qkv::inline v0::nn
