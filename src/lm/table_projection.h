// The first layer of a plain model reads h = tok[id] + pos[i], so its projections are W h = W tok[id] + W pos[i]:
// project V + T rows instead of B T, then add rows. Backward is the transpose: first sum the gradients of the
// projections by character and by position. The same sums in another order.
#pragma once

#include <span>

#include "lm/model.h"

namespace qkv::inline v0::lm {

struct TableProjection {
  Tensor<float> tok, pos;    // [V, P], [T, P]: the projected tables
  Tensor<float> dtok, dpos;  // [V, P], [T, P]

  /// Whether a batch of B sequences of T has enough tokens to gain from it.
  static bool pays(const AttentionLMConfig& config, Index batch, Index length) {
    return !config.blocks && config.positions == PositionKind::kLearned && config.vocab_size + length < batch * length;
  }

  /// projected [B, T, P] of the tokens `ids` [B * T] at `positions` [B * T], all below `length`.
  void forward(const AttentionLM::Impl& model, std::span<const Index> ids, std::span<const Index> positions,
      Index length, Tensor<float>& projected, Context& context);
  /// From dprojected [B, T, P]: the parameter gradients of the projection += , those of both embeddings overwritten.
  void backward(AttentionLM::Impl& model, std::span<const Index> ids, std::span<const Index> positions,
      View<const float, 3> dprojected, Context& context);
};

}  // namespace qkv::inline v0::lm
