// GroupedQueryAttention: H query heads that share Hkv key/value heads, as in Llama, Qwen and OLMo. AttentionLayer with names,
// defaults, norms of q and k and rotary positions; see there for the arithmetic. Ainslie 2023, arXiv:2305.13245.
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

/// Hugging Face's Llama names: q_proj.weight [H D, E], k_proj.weight and v_proj.weight [Hkv D, E], o_proj.weight [E, H D].
/// Biases of q, k, v and of o are independent (Qwen 2 has the first, GPT-OSS both). Norms q_norm.weight and k_norm.weight: [D]
/// (Qwen 3), or [H D] and [Hkv D] (OLMo 2). Query head h reads key/value head h / (H / Hkv); nothing is copied. Empty rows
/// kZero, no dropout, scale 1/sqrt(D). Not causal unless `causal` is set, as for the other forms.
///   GroupedQueryAttention attention(
///       {.embed_dim = 512, .num_heads = 8, .num_kv_heads = 2, .rotary = RotaryOptions{}, .causal = true});
/// Throws OptionError when num_kv_heads does not divide num_heads, or head_dim is 0 and num_heads does not divide embed_dim.
class QKV_API GroupedQueryAttention : public AttentionLayer {
 public:
  explicit GroupedQueryAttention(const LayerConfig& config);
};

}  // namespace qkv::inline v0::nn
