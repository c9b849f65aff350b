// The parts of AttentionLM, for forward, backward and the decoder.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "qkv/lm/attention_lm.h"
#include "qkv/nn/attention_layer.h"
#include "qkv/nn/embedding.h"
#include "qkv/nn/layer_norm.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/mlp.h"

namespace qkv::inline v0::lm {

/// One layer. Without blocks it is attention alone.
struct Block {
  nn::AttentionLayer attention;
  std::optional<nn::LayerNorm> ln_1, ln_2;
  std::optional<nn::Mlp> mlp;
};

struct [[gnu::visibility("hidden")]] AttentionLM::Impl {
  Impl(const AttentionLMConfig& config, std::uint64_t seed);

  AttentionLMConfig config;
  bool training = false;
  std::function<void(std::span<float>)> sum;  // over the parts of a model that is sharded; none: it is whole
  nn::Embedding tok;                          // [V, E]
  std::optional<nn::Embedding> pos;           // [context, E]; none where positions are rotary
  std::vector<Block> blocks;
  std::optional<nn::LayerNorm> ln_f;
  nn::Linear head;                        // [V, E]
  std::vector<nn::Parameter> parameters;  // all of the above, by full name

  /// The residual dropout of the MLP of layer `layer`, and the seed of its attention's dropouts.
  Dropout mlp_dropout(std::uint64_t seed, Index layer, Index first_sequence) const;
  std::uint64_t attention_seed(std::uint64_t seed, Index layer) const;
  /// h [n, E] of tokens at positions: the first layer's input. And its backward: embeddings' gradients += .
  void embed(std::span<const Index> ids, std::span<const Index> positions, View<float, 2> h, Context& context,
      bool with_positions = true) const;
  void embed_backward(
      std::span<const Index> ids, std::span<const Index> positions, View<const float, 2> dh, Context& context);
  /// x, of the heads that this model has, becomes that of all heads.
  void sum_over_parts(Tensor<float>& x) const {
    if (sum) sum(x.span());
  }
  /// What the values of a forward depend on, but for those of parameters.
  std::array<Index, 8> shape() const {
    const nn::AttentionLayer& first = blocks.front().attention;
    return {config.vocab_size, config.context, config.embed_dim, first.num_heads(), first.num_kv_heads(),
        static_cast<Index>(blocks.size()), config.blocks, pos.has_value()};
  }
  void collect_parameters();
  /// Throws UnsupportedError in the name of `function` for a shard.
  void check_whole(const char* function) const;
};

/// Returns a valid configuration; otherwise throws OptionError with the numbers.
const AttentionLMConfig& checked(const AttentionLMConfig& config);

/// Throws OptionError in the name of `function` for a head that the model does not have.
void check_heads(const AttentionLMConfig& config, const HeadSet& heads, const char* function);
/// Those of one layer.
void heads_of(const HeadSet& heads, Index layer, std::vector<Index>& found);

/// out += add, element by element. Same size.
void add_to(Tensor<float>& out, const Tensor<float>& add);

}  // namespace qkv::inline v0::lm
