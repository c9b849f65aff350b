// Attention of a layer: of whole sequences here, or of a part of each, whose rest other ranks hold. Not: the layer.
#pragma once

#include "core/check.h"
#include "qkv/nn/layer.h"

namespace qkv::inline v0::nn {

/// Throws where a part does not fit the layer's call: tokens [B, length, ...].
template <class T>
void check_part(std::string_view name, const ForwardOptions& options, Index length) {
  if (options.part == nullptr) return;
  const auto held = static_cast<Index>(options.part->positions().size());
  check<UnsupportedError>(std::is_same_v<T, float>, name, "parts of sequences must be f32: got bf16");
  check<ShapeError>(held == length, name, "x must hold the tokens of options.part, ", held, ": got ", length);
  check<UnsupportedError>(options.weights == nullptr && options.applied == nullptr, name,
                          "weights and applied are of whole sequences: leave out options.part");
}

/// Positions of the tokens: those of the part, otherwise as given.
inline RotaryPositions positions_of(const ForwardOptions& options) {
  if (options.part == nullptr) return options.positions;
  const std::span<const Index> held = options.part->positions();
  return {.ids = View<const Index, 2>(held.data(), {1, static_cast<Index>(held.size())})};
}

inline std::span<const Index> tokens_of(const SequencePart* part) {
  return part == nullptr ? std::span<const Index>() : part->positions();
}

template <class T>
void forward_attention(SequencePart* part, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                       const AttentionOutputs<T>& outputs, const AttentionOptions& options, Context& context) {
  if constexpr (std::is_same_v<T, float>) {
    if (part != nullptr) return part->forward(q, k, v, outputs.out, outputs.lse, options);
  }
  attention_forward(q, k, v, outputs, options, context);
}

template <class T>
void backward_attention(SequencePart* part, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                        const View<const T, 4>& out, const View<const float, 3>& lse, const View<const T, 4>& dout,
                        const AttentionGradients<T>& gradients, const AttentionOptions& options, Context& context) {
  if constexpr (std::is_same_v<T, float>) {
    if (part != nullptr) return part->backward(q, k, v, out, lse, dout, gradients, options);
  }
  attention_backward(q, k, v, out, lse, dout, gradients, options, context);
}

}  // namespace qkv::inline v0::nn
