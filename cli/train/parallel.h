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

/// One run on one rank. Weights, batches and options must be the same on all ranks: MismatchError. UsageError where
/// ranks and sizes do not fit.
class SharedTraining {
 public:
  /// Refers to all of them. Each step's loss and gradients become those of the whole batch: in run.train.
  SharedTraining(const Ranks& ranks, TrainRun& run, const std::string& method, Context& context);

  /// The model that this rank trains: the run's model, or its heads of it.
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
  std::optional<dist::ContextParallel> attention_;
  nn::SequencePart tokens_;  // of this rank, whose attention_ it is
  std::optional<lm::AttentionLM> shard_;
};

}  // namespace qkv::cli
