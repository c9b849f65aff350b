// Attention of the toy model where ranks share its sequences: ContextParallel as layers call it. Not: what else training shares
// (parallel.cc).
#pragma once

#include <vector>

#include "qkv/dist/context_parallel.h"
#include "qkv/nn/sequence_part.h"

namespace qkv::cli {

class TokensOfRank final : public nn::SequencePart {
 public:
  /// This rank's tokens of sequences of `length`. Refers to the transport and the context.
  TokensOfRank(dist::Transport& transport, const dist::ContextParallelOptions& cut, Index length, Context& context);

  std::span<const Index> positions() const override { return positions_; }
  void forward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<float, 4> out, View<float, 3> lse,
               const AttentionOptions& options) override {
    attention_.forward(q, k, v, out, lse, options);
  }
  void backward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<const float, 4> out,
                View<const float, 3> lse, View<const float, 4> dout, const AttentionGradients<float>& gradients,
                const AttentionOptions& options) override {
    attention_.backward(q, k, v, out, lse, dout, gradients, options);
  }

 private:
  dist::ContextParallel attention_;
  std::vector<Index> positions_;
};

}  // namespace qkv::cli
