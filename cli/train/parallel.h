// `qkv train --parallel`: what each rank computes of a step, and how the ranks' gradients become one. data: sequences
// of the batch; all-gather, ulysses, ring: tokens of each sequence; heads: of every layer, with their parameters.
#pragma once

#include <optional>

#include "qkv/dist/context_parallel.h"
#include "qkv/nn/sequence_part.h"
#include "ranks/ranks.h"
#include "train/options.h"

namespace qkv::cli {

/// UsageError for a word of --parallel that says nothing here.
void require_method(const std::string& method);

/// Attention of the toy model where ranks share its sequences: ContextParallel as layers call it.
class TokensOfRank final : public nn::SequencePart {
 public:
  /// This rank's tokens of sequences of `length`. Refers to the transport and the context.
  TokensOfRank(dist::Transport& transport, const dist::ContextParallelOptions& cut, Index length, Context& context);

  std::span<const Index> positions() const override { return positions_; }
  void forward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<float, 4> out,
      View<float, 3> lse, const AttentionOptions& options) override {
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

/// One run on one rank. Weights, batches and options must be the same on all ranks: MismatchError. UsageError where
/// ranks and sizes do not fit.
class SharedTraining {
 public:
  /// Refers to all of them. Each step's loss and gradients become those of the whole batch: in run.train.
  SharedTraining(const Ranks& ranks, TrainRun& run, const std::string& method, Context& context);

  /// What this rank trains: the run's model, or its heads of it.
  lm::AttentionLM& model() { return shard_ ? *shard_ : run_.model; }
  /// Collective, after training: the run's model is complete on every rank. MismatchError when the ranks' weights then
  /// differ in a bit, which they never should.
  void finish();

 private:
  void share_sequences();
  void share_tokens(const std::string& method, Context& context);
  void share_heads();
  void require_heads(const std::string& method) const;

  const Ranks& ranks_;
  TrainRun& run_;
  std::optional<TokensOfRank> tokens_;
  std::optional<lm::AttentionLM> shard_;
};

}  // namespace qkv::cli
