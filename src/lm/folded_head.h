// Nothing stands between a plain model's output projection and its head, so logits = (a W_o^T) W_h^T + b = a M^T + b
// with M = W_h W_o, [V, W]: a product with V columns instead of one with E and one with V. Backward is the transpose:
// dM = dlogits^T a, then dW_h = dM W_o^T and dW_o = W_h^T dM. The same sums in another order.
#pragma once

#include "lm/model.h"

namespace qkv::inline v0::lm {

struct FoldedHead {
  Tensor<float> weight, dweight;  // M and dM [V, W]

  /// Whether nothing stands between the two, and M has fewer rows than the `tokens` of a batch.
  static bool pays(const AttentionLM::Impl& model, Index tokens) {
    const AttentionLMConfig& c = model.config;
    return !c.blocks && c.num_layers == 1 && !(model.training && c.dropout > 0) && c.vocab_size < tokens;
  }

  /// attended [B * T, W] -> logits [B * T, V].
  void forward(const AttentionLM::Impl& model, View<const float, 2> attended, View<float, 2> logits, Context& context);
  /// dattended [B * T, W] and the gradients of W_o, W_h and b, which must be 0 before.
  void backward(AttentionLM::Impl& model, View<const float, 2> attended, View<const float, 2> dlogits,
      View<float, 2> dattended, Context& context);
};

}  // namespace qkv::inline v0::lm
