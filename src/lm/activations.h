// The values of one forward of AttentionLM.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "lm/folded_head.h"
#include "lm/model.h"
#include "lm/table_projection.h"

namespace qkv::inline v0::lm {

/// Positions of a share's tokens in their sequences; empty: 0, 1, ...
inline std::span<const Index> tokens_of(const BatchShare& share) {
  return share.part == nullptr ? std::span<const Index>() : std::span<const Index>(share.part->positions);
}

/// One layer's values kept for backward. Plain layers use `attention` and `out` alone.
struct LayerActivations {
  nn::Saved attention;
  std::vector<Index> cut;  // heads that write zeros
  nn::MlpSaved mlp;
  Tensor<float> normed_1, normed_2;  // [B, T, E] after ln_1, ln_2
  Tensor<float> middle;              // [B, T, E] after attention's residual
  Tensor<float> branch;              // [B, T, E] what attention adds, then what the MLP adds
  Tensor<float> out;                 // [B, T, E]
};

struct AttentionLM::Activations::Impl {
  BatchShare share;
  Index batch = 0, length = 0;        // B, T
  std::vector<Index> ids, positions;  // [B * T]
  std::vector<Index> targets;         // [B * T]
  std::uint64_t dropout_seed = 0;
  std::optional<std::array<Index, 8>> made_by;  // the shape of the model whose forward ended; none: it was refused
  bool has_loss = false;                        // dlogits are of these values
  bool by_table = false;                        // the first layer's projections come from `table`, not from `embedded`
  bool folded = false;  // logits come from `fold` and what is attended, not from the layer's output; only by_table
  TableProjection table;
  FoldedHead fold;
  Tensor<float> embedded;  // [B, T, E]
  std::vector<LayerActivations> layers;
  Tensor<float> last;         // [B, T, E] after ln_f; empty without blocks
  Tensor<float> logits;       // [B, T, V]
  Tensor<float> dlogits;      // [B, T, V]
  Tensor<float> dh, dbranch;  // [B, T, E], backward's workspace

  const Tensor<float>& head_input() const { return last.count() != 0 ? last : layers.back().out; }
  const Tensor<float>& layer_input(std::size_t layer) const { return layer == 0 ? embedded : layers[layer - 1].out; }
  std::array<Index, 3> sizes(Index width) const { return {batch, length, width}; }
  std::span<const Index> tokens() const { return tokens_of(share); }
};

}  // namespace qkv::inline v0::lm
