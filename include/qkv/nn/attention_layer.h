// AttentionLayer: projection -> attention -> projection, the one implementation behind every form with learned q, k, v.
// The forms (self_attention.h) are names and defaults of it and add no arithmetic.
//
//   projected = x W_in^T + b_in          [B, T, P]    rows of W_in [P, E] in the order q, k, v; P = W + 2 Wkv
//   q, k      = rotary(norm(q, k))                    both optional; grouped-query only
//   attended  = attention(q, k, v)       [B, T, W]    heads side by side, W = num_heads * head_dim, Wkv likewise
//   y         = dropout(attended W_out^T + b_out)      [B, T, E]; without an output projection y = dropout(attended)
//
// Merged and separate names are two ways to name rows of one matrix, so conversion between them is exact.
#pragma once

#include <array>
#include <optional>

#include "qkv/kv_cache.h"
#include "qkv/nn/layer.h"

namespace qkv::inline v0::nn {

/// Whether a form can have an output projection.
enum class OutputProjection { kNone, kOptional, kRequired };

/// A form of attention: how the ladder's classes differ before the options of a caller.
struct AttentionForm {
  std::string_view type;                       ///< "SelfAttentionV1", for error texts
  std::string_view name;                       ///< "v1", in `qkv layer`
  std::array<std::string_view, 5> names = {};  ///< own names of q, k, v, merged, output
  bool merged = false;                         ///< own names use one matrix for q, k, v
  OutputProjection output = OutputProjection::kNone;
  bool own_width = false;  ///< reads d_k
  bool heads = false;      ///< reads num_heads, which must be given; masks may have an axis of heads (also where H = 1)
  /// reads num_kv_heads, head_dim, norms, rotary; biases of q, k, v and of the output are independent
  bool grouped = false;
  bool bias = true;
  bool causal = false;
  EmptyRow empty_row = EmptyRow::kMean;
  float dropout = 0;
  float residual_dropout = 0;
};

/// Workspace of AttentionLayer::step, owned by the caller; reused from step to step it does not allocate.
template <class T> struct StepMemoryOf {
  Tensor<T> projected, attended;  // [B, n, P], [B, n, W]
  std::vector<Index> positions;   // [B]: position of each sequence's first new token
};
using StepMemory = StepMemoryOf<float>;
using Bf16StepMemory = StepMemoryOf<BFloat16>;

class QKV_API AttentionLayer : public Layer {
 public:
  AttentionLayer(const AttentionForm& form, const LayerConfig& config);

  std::string_view name() const override { return form_.name; }
  Index embed_dim() const override { return config_.embed_dim; }
  Index output_dim() const override { return has_output_projection() ? config_.embed_dim : width(); }
  Index num_heads() const override { return config_.num_heads; }
  Index num_kv_heads() const { return config_.num_kv_heads; }
  Index head_dim() const { return config_.head_dim; }
  Index width() const { return config_.num_heads * config_.head_dim; }
  Index kv_width() const { return config_.num_kv_heads * config_.head_dim; }  ///< Wkv
  Index projected_width() const { return width() + 2 * kv_width(); }          ///< P
  bool has_bias() const { return values_.in_bias.count() != 0; }
  bool has_output_bias() const { return values_.out_bias.count() != 0; }
  bool has_output_projection() const { return values_.out_weight.count() != 0; }
  /// The span over which q and k are normalised, as created or as in the loaded file.
  QkNorm qk_norm() const;
  bool masks_have_heads() const override { return form_.heads; }
  /// As it was created, with the form's defaults in it. A size that the form does not read is what follows from the
  /// others (one head, head_dim = width / num_heads, ...), not what was given. The biases of a file: has_bias().
  const LayerConfig& config() const { return config_; }

  void forward_into(
      View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const override;
  void backward_into(
      View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context& context = Context::default_context()) override;
  void forward_into(
      View<const BFloat16, 3> x, View<BFloat16, 3> y, const ForwardOptions& options, Bf16Saved* saved) const override;
  void backward_into(View<const BFloat16, 3> dy, Bf16Saved& saved, View<BFloat16, 3> dx,
      Context& context = Context::default_context()) override;

  /// The next n tokens of every sequence of a cache: x [B, n, E] -> y [B, n, output_dim], B the cache's sequences.
  /// Appends their keys and values (rotary positions continue from each sequence's length); each token attends to all
  /// keys up to its own that `mask` keeps; heads of `cut` write zeros. Prefill is a step of many tokens. No dropout, no
  /// backward. A row without keys is NaN in a layer of EmptyRow::kNaN; else zeros, also where forward takes the mean,
  /// which caches do not have. Every error before the append, such as CacheFullError, leaves the cache unchanged; after
  /// it only attention_forward's errors about the mask can be thrown.
  void step(View<const float, 3> x, View<float, 3> y, KVCache& cache, StepMemory& memory, const Mask& mask = {},
      Context& context = Context::default_context(), std::span<const Index> cut = {}) const;
  void step(View<const BFloat16, 3> x, View<BFloat16, 3> y, KVCache& cache, Bf16StepMemory& memory,
      const Mask& mask = {}, Context& context = Context::default_context(), std::span<const Index> cut = {}) const;

  std::vector<Parameter> parameters() override;
  /// Accepts every spelling (query_proj, q_proj, W_Q, wq, to_q, ...; output_proj, out_proj, c_proj, to_out, ...; proj,
  /// in_proj, Wqkv, c_attn, ...), merged or separate; the names that came in are kept. The error about an unknown name
  /// lists them all. Causal masks and angles of rotary positions that a file holds as buffers (mask, tril, GPT-2's bias
  /// [1, 1, T, T], inv_freq) are left out. The file decides about biases and an optional output projection.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

  /// Copies the parameters of a layer of the same embed_dim, num_heads, num_kv_heads and head_dim (ShapeError); names
  /// stay. Biases and norms are there afterwards where `from` has them; an output projection too where the form allows
  /// it, otherwise OptionError. Gradients become 0, and what parameters() gave before is no longer valid.
  void copy_parameters(const AttentionLayer& from);

  /// The implementation: src/nn/attention/run.h, sharding.cc.
  template <class T> struct Run;
  template <class T> struct Back;
  struct Shards;

 private:
  struct Tensors {
    Tensor<float> in_weight;   // [P, E]
    Tensor<float> in_bias;     // [P], empty without biases
    Tensor<float> out_weight;  // [E, W], empty without an output projection
    Tensor<float> out_bias;    // [E], empty without biases
    Tensor<float> q_norm;      // [D] or [W], empty without norms
    Tensor<float> k_norm;      // [D] or [Wkv]
  };

  AttentionForm form_;
  LayerConfig config_;
  Index first_head_ = 0,
        whole_heads_ = 0;         // of a shard: its first head among those of the whole, for dropout; 0: it is whole
  Mask causal_ = Mask::causal();  // stored, so that a forward allocates nothing
  Mask last_sees_last_ = Mask::causal(Align::kBottomRight);
  bool merged_;                                           // whether names use one matrix for q, k, v, or three
  std::array<std::string, 5> weight_names_, bias_names_;  // of q, k, v, merged, output
  std::optional<Rotary> rotary_;
  Tensors values_, gradients_;
};

}  // namespace qkv::inline v0::nn
