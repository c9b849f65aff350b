// MultiHeadLatentAttention: DeepSeek's attention, whose keys and values are linear maps of one small vector a token.
// Not: other layers (layer.h), sparse attention over its cache (Mask::keys, which step takes).
//
//   q       = W_q x, or W_qb norm(W_qa x)   [B, T, H (Dn + Dr)]   Dn without and Dr with positions: rotated
//   c | r   = W_kva x                       [B, T, R + Dr]        c = norm(c), r rotated: all that a cache holds
//   k_n | v = W_kvb c                       [B, T, H (Dn + Dv)]   a key is [k_n | r], r the same for all heads
//   y       = W_o attention(q, k, v)        [B, T, E]             scale 1/sqrt(Dn + Dr)
//
// The materialised form computes k_n and v. The absorbed one needs none: q_n . (W_k c) = (W_k^T q_n) . c, and sum w v =
// W_v sum w c, so c | r is one key head for all query heads and c, its first columns, its value. DeepSeek-V2, 2024,
// arXiv:2405.04434, sec. 2.1 and app. C.
#pragma once

#include <optional>

#include "qkv/kv_cache.h"
#include "qkv/nn/linear.h"
#include "qkv/rotary.h"

namespace qkv::inline v0::nn {

struct LatentAttentionConfig {
  Index embed_dim = 0;           ///< E
  Index num_heads = 0;           ///< H
  Index q_lora_rank = 0;         ///< 0: none, q_proj
  Index kv_lora_rank = 512;      ///< R
  Index qk_nope_head_dim = 128;  ///< Dn
  Index qk_rope_head_dim = 64;   ///< Dr, even
  Index v_head_dim = 128;        ///< Dv
  bool bias = false;             ///< DeepSeek's attention_bias: of q_a_proj, kv_a_proj_with_mqa and o_proj
  double norm_eps = 1e-6;
  std::optional<double> scale = {};  ///< none: 1/sqrt(Dn + Dr); DeepSeek's YaRN multiplies it by mscale^2
  RotaryOptions rotary = {.layout = RotaryLayout::kInterleaved};
  bool causal = true;
  std::uint64_t seed = 0;  ///< weights and biases: uniform +-1/sqrt(inputs), as PyTorch
};

/// Values for backward, filled by forward, owned by the caller; reused from call to call it does not allocate.
struct LatentSaved {
  Tensor<float> x;              // [B, T, E]
  Tensor<float> q_a, q_a_norm;  // [B, T, q_lora_rank], before and after the norm
  Tensor<float> q;              // [B, T, H (Dn + Dr)], rotated
  Tensor<float> kv_a, latent;   // [B, T, R + Dr], before and after norm and rotation
  Tensor<float> kv, k;          // [B, T, H (Dn + Dv)], [B, T, H (Dn + Dr)]
  Tensor<float> attended;       // [B, T, H Dv]
  Tensor<float> lse;            // [B, H, T]
  Mask mask;
  RotaryPositions positions;
  Tensor<float> dattended, dq, dk, dkv, dlatent, dq_a, dx;  // workspace of backward
  Tensor<float> dnorm;
};

/// Workspace of step, owned by the caller.
struct LatentStepMemory {
  LatentSaved rows;                    // of the new tokens
  Tensor<float> absorbed, latent_out;  // [B, n, H, R + Dr], [B, n, H, R]
  Tensor<float> held, kv, k;           // materialised: of all tokens that the cache holds
  std::vector<Index> positions, lengths;
};

struct LatentOptions {
  Mask mask = {};                   ///< intersected with the causal mask; what it borrows must outlive backward
  std::optional<bool> causal = {};  ///< none: the layer's own
  RotaryPositions positions = {};   ///< what it borrows must outlive backward
};

/// DeepSeek's names, those of Hugging Face's deepseek_v2 and deepseek_v3: q_proj, or q_a_proj q_a_layernorm q_b_proj;
/// kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj, in f32. No dropout; empty rows are zeros.
/// Forward is const and may run concurrently, backward and load may not. Throws ShapeError and OptionError.
class QKV_API MultiHeadLatentAttention : public Module {
 public:
  explicit MultiHeadLatentAttention(const LatentAttentionConfig& config);

  const LatentAttentionConfig& config() const { return config_; }

  /// y [B, T, E] from x [B, T, E], materialised.
  void forward(View<const float, 3> x, View<float, 3> y, LatentSaved& saved, const LatentOptions& options = {},
      Context& context = Context::default_context()) const;
  /// dx [B, T, E] (null: not wanted) from dy [B, T, E]; parameter gradients += .
  void backward(
      View<const float, 3> dy, LatentSaved& saved, View<float, 3> dx, Context& context = Context::default_context());

  /// `cache` with this layer's sizes: one head [c | r], values in keys.
  KVCacheConfig cache_config(KVCacheConfig cache = {}) const;
  /// The form that step computes; kAuto: the one with fewer operations, absorbed for few new tokens.
  enum class Form { kAuto, kAbsorbed, kMaterialised };
  /// The next n tokens of every sequence of a cache: x [B, n, E] -> y [B, n, E]. Appends their c | r; each token
  /// attends to all keys up to its own that `mask` keeps. A ring is read in the absorbed form alone. After an error,
  /// such as of the mask, the cache has the tokens that it had; a ring, which may have overwritten some, has the new
  /// ones too.
  void step(View<const float, 3> x, View<float, 3> y, KVCache& cache, LatentStepMemory& memory, const Mask& mask = {},
      Form form = Form::kAuto, Context& context = Context::default_context()) const;

  std::vector<Parameter> parameters() override;

 private:
  struct Run;
  struct Back;
  struct Norm {
    Tensor<float> weight, gradient;  // [D]
  };

  bool low_rank() const { return config_.q_lora_rank != 0; }
  Index q_width() const { return config_.qk_nope_head_dim + config_.qk_rope_head_dim; }
  Index latent_width() const { return config_.kv_lora_rank + config_.qk_rope_head_dim; }
  Index kv_width() const { return config_.qk_nope_head_dim + config_.v_head_dim; }
  double scale() const;

  LatentAttentionConfig config_;
  Rotary rotary_;
  std::optional<Linear> q_a_;   // of low-rank queries, and their norm
  Linear q_, kv_a_, kv_b_, o_;  // q_ reads x, or the norm's result
  Norm q_norm_, kv_norm_;
};

}  // namespace qkv::inline v0::nn
