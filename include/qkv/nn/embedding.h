// Embedding: one learned row per id. Not: positions computed by formula.
#pragma once

#include "qkv/context.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {

struct EmbeddingOptions {
  Index num_embeddings = 0;
  Index embed_dim = 0;
  std::uint64_t seed = 0;  ///< initialised N(0, 1), as in PyTorch
};

/// dtable[ids[m]] += dy[m], in ascending m for each row of the table [V, E], for any number of threads.
QKV_API void scatter_rows(View<const float, 2> dy, std::span<const std::int64_t> ids, View<float, 2> dtable,
    Context& context = Context::default_context());

class QKV_API Embedding : public Module {
 public:
  explicit Embedding(const EmbeddingOptions& options);

  /// y [M, E]: y[m] = weight[ids[m]], or y[m] += ... with `accumulate`. OptionError for an id outside
  /// 0..num_embeddings-1.
  void forward(std::span<const std::int64_t> ids, View<float, 2> y, bool accumulate = false,
      Context& context = Context::default_context()) const;

  /// dweight[ids[m]] += dy[m], in ascending m for each row of weight, for any number of threads.
  void backward(
      std::span<const std::int64_t> ids, View<const float, 2> dy, Context& context = Context::default_context());

  std::vector<Parameter> parameters() override;

  Index num_embeddings() const { return weight_.size(0); }
  Index embed_dim() const { return weight_.size(1); }
  const Tensor<float>& weight() const { return weight_; }  // [V, E]

 private:
  Tensor<float> weight_, gradient_;  // [V, E]
};

}  // namespace qkv::inline v0::nn
