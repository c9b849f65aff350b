// AttentionLayer: projection -> attention -> projection, the one implementation behind every form with learned q, k, v.
// The forms (self_attention.h, multi_head_attention.h) are configurations of it and add no arithmetic.
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

/// One form of attention: how the ladder's classes differ.
struct AttentionLayerConfig {
  std::string_view type;   ///< "SelfAttentionV1", for error texts
  std::string_view name;   ///< "v1", in `qkv layer`
  Index embed_dim = 0;     ///< E
  Index width = 0;         ///< W; 0: E
  Index num_heads = 1;     ///< divides W
  Index num_kv_heads = 0;  ///< divides num_heads; 0: num_heads
  bool heads = false;      ///< masks may have an axis of heads (also where H = 1)
  bool bias = true;
  bool output_bias = true;  ///< equal to `bias` unless `grouped`
  bool grouped = false;     ///< may have norms, and biases of q, k, v and of the output independently
  QkNorm qk_norm = QkNorm::kNone;
  double norm_eps = 1e-6;
  std::optional<RotaryOptions> rotary = {};
  OutputProjection output = OutputProjection::kNone;
  bool output_now = false;                     ///< kOptional: the layer is created with one
  bool merged = false;                         ///< own names use one matrix for q, k, v
  std::array<std::string_view, 5> names = {};  ///< own names of q, k, v, merged, output
  bool causal = false;
  EmptyRow empty_row = EmptyRow::kMean;
  float dropout = 0;
  float residual_dropout = 0;
  Init init = Init::kLinear;
  std::uint64_t seed = 0;
  Index first_head = 0, whole_heads = 0;  ///< of a shard: its place among the heads of the whole, for dropout; 0: it is whole
};

class GroupedQueryAttention;
template <class T>
struct ForwardRows;

/// Workspace of AttentionLayer::step, owned by the caller; reused from step to step it does not allocate.
template <class T>
struct StepMemoryOf {
  Tensor<T> projected, attended;  // [B, n, P], [B, n, W]
  std::vector<Index> positions;   // [B]: position of each sequence's first new token
};
using StepMemory = StepMemoryOf<float>;
using Bf16StepMemory = StepMemoryOf<BFloat16>;

class QKV_API AttentionLayer : public Layer {
 public:
  explicit AttentionLayer(const AttentionLayerConfig& config);

  std::string_view name() const override { return config_.name; }
  Index embed_dim() const override { return config_.embed_dim; }
  Index output_dim() const override { return has_output_projection() ? config_.embed_dim : config_.width; }
  Index num_heads() const override { return config_.num_heads; }
  Index num_kv_heads() const { return config_.num_kv_heads; }
  Index head_dim() const { return config_.width / config_.num_heads; }
  Index width() const { return config_.width; }
  Index kv_width() const { return config_.num_kv_heads * head_dim(); }      ///< Wkv
  Index projected_width() const { return config_.width + 2 * kv_width(); }  ///< P
  bool has_bias() const { return in_bias_.count() != 0; }
  bool has_output_bias() const { return out_bias_.count() != 0; }
  bool has_output_projection() const { return out_weight_.count() != 0; }
  /// What q and k are normalised over, as created or as in the loaded file.
  QkNorm qk_norm() const;
  bool masks_have_heads() const override { return config_.heads; }
  const AttentionLayerConfig& config() const { return config_; }

  void forward_into(View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const override;
  void backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx,
                     Context& context = Context::default_context()) override;
  void forward_into(View<const BFloat16, 3> x, View<BFloat16, 3> y, const ForwardOptions& options,
                    Bf16Saved* saved) const override;
  void backward_into(View<const BFloat16, 3> dy, Bf16Saved& saved, View<BFloat16, 3> dx,
                     Context& context = Context::default_context()) override;

  /// The two projections alone, for a cache of keys and values: x [B, T, E] -> q, k, v side by side [B, T, P], norms and rotary
  /// positions applied; and attended [B, T, W] -> y [B, T, output_dim] (a copy without an output projection). No dropout.
  void project(View<const float, 3> x, View<float, 3> projected, Context& context = Context::default_context(),
               const RotaryPositions& positions = {}) const;
  void project_output(View<const float, 3> attended, View<float, 3> y, Context& context = Context::default_context()) const;
  void project(View<const BFloat16, 3> x, View<BFloat16, 3> projected, Context& context = Context::default_context(),
               const RotaryPositions& positions = {}) const;
  void project_output(View<const BFloat16, 3> attended, View<BFloat16, 3> y,
                      Context& context = Context::default_context()) const;

  /// The next n tokens of every sequence of a cache: x [B, n, E] -> y [B, n, output_dim], B the cache's sequences. Appends
  /// their keys and values (rotary positions continue from each sequence's length); each token attends to all keys up to its
  /// own that `mask` keeps. Prefill is a step of many tokens. No dropout, no backward. Every error before the append, such as
  /// CacheFullError, leaves the cache unchanged; after it only attention_forward's errors about the mask can be thrown.
  void step(View<const float, 3> x, View<float, 3> y, KVCache& cache, StepMemory& memory, const Mask& mask = {},
            Context& context = Context::default_context()) const;
  void step(View<const BFloat16, 3> x, View<BFloat16, 3> y, KVCache& cache, Bf16StepMemory& memory, const Mask& mask = {},
            Context& context = Context::default_context()) const;

  /// Copies the parameters of a layer of the same sizes; names stay. OptionError when only one of the two has a parameter.
  void copy_parameters(const AttentionLayer& from);

  std::vector<Parameter> parameters() override;
  /// Accepts every spelling (query_proj, q_proj, W_Q, wq, to_q, ...; output_proj, out_proj, c_proj, to_out, ...; proj, in_proj,
  /// Wqkv, c_attn, ...), merged or separate; the names that came in are kept. The error about an unknown name lists them all.
  /// Causal masks and angles of rotary positions that a file holds as buffers (mask, tril, GPT-2's bias [1, 1, T, T], inv_freq)
  /// are left out. The file decides about biases and an optional output projection.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

 protected:
  std::string_view type_name() const override { return config_.type; }

 private:
  friend QKV_API GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts);
  friend QKV_API void add_shard_gradients(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts);
  friend QKV_API void take_shard(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts);

  friend struct ProjectedHalves;

  /// Adds the shard's gradients to this layer's, or takes its parameters.
  void merge_shard(const AttentionLayer& shard, Index part, Index parts, const char* function, bool gradients);
  void initialise();
  void make_gradients();
  /// forward and backward in halves (src/nn/attention/projected_halves.h).
  template <class T>
  void forward_projected(View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const;
  /// The rest of forward, from rows.projected on. saved gets what is not a tensor.
  template <class T>
  void attend(const ForwardRows<T>& rows, View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const;
  template <class T>
  View<const T, 3> backward_projected(View<const T, 3> dy, SavedOf<T>& saved, Context& context);
  template <class T>
  View<const T, 3> backward_attended(View<const T, 3> dattended, SavedOf<T>& saved, Context& context);
  template <class T>
  void forward_of(View<const T, 3> x, View<T, 3> y, const ForwardOptions& options, SavedOf<T>* saved) const;
  template <class T>
  void backward_of(View<const T, 3> dy, SavedOf<T>& saved, View<T, 3> dx, Context& context);
  template <class T>
  void output_of(View<const T, 3> attended, View<T, 3> y, Context& context) const;
  template <class T>
  void project_of(View<const T, 3> x, View<T, 3> projected, Context& context, const RotaryPositions& positions) const;
  template <class T>
  void project_output_of(View<const T, 3> attended, View<T, 3> y, Context& context) const;
  template <class T>
  void step_of(View<const T, 3> x, View<T, 3> y, KVCache& cache, StepMemoryOf<T>& memory, const Mask& mask,
               Context& context) const;
  void backward_projection(View<const float, 3> x, View<const float, 3> dprojected, View<float, 3> dx, Context& context);
  /// q, k or v (part 0, 1, 2) of projected [B, T, P], as [B, H, T, D].
  template <class T>
  View<T, 4> part_of(View<T, 3> projected, int part) const;
  /// q or k (part 0, 1) within columns [B, T, W + Wkv, ...], one row per vector that its norm is over.
  template <class T>
  View<T, 4> normed_rows(View<T, 3> columns, int part) const;
  /// The heads of q and k together: what the rotary positions rotate.
  template <class T>
  View<T, 4> turned_heads(View<T, 3> columns) const;
  /// Norms and rotary positions on projected [B, T, P], in place; and backward: the gradient [B, T, P] in place, norms' += .
  template <class T>
  void position(View<T, 3> projected, const RotaryPositions& positions, Context& context) const;
  template <class T>
  void unposition(View<T, 3> dprojected, SavedOf<T>& saved, Context& context);
  template <class T>
  void check_output(View<const T, 3> y, Index batch, Index length) const;
  AttentionOptions attention_options(const ForwardOptions& options) const;

  AttentionLayerConfig config_;
  Mask causal_ = Mask::causal();  // stored, so that a forward allocates nothing
  Mask last_sees_last_ = Mask::causal(Align::kBottomRight);
  bool merged_;                                           // whether names use one matrix for q, k, v, or three
  std::array<std::string, 5> weight_names_, bias_names_;  // of q, k, v, merged, output
  std::optional<Rotary> rotary_;
  Tensor<float> in_weight_, in_weight_gradient_;    // [P, E]
  Tensor<float> in_bias_, in_bias_gradient_;        // [P], empty without biases
  Tensor<float> out_weight_, out_weight_gradient_;  // [E, W], empty without an output projection
  Tensor<float> out_bias_, out_bias_gradient_;      // [E], empty without biases
  Tensor<float> q_norm_, q_norm_gradient_;          // [D] or [W], empty without norms
  Tensor<float> k_norm_, k_norm_gradient_;          // [D] or [Wkv]
};

}  // namespace qkv::inline v0::nn
