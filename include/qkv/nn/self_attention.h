// The forms of attention as types: the ladder V1..V4, SelfAttention with its own width, one head, several, grouped.
// Each is AttentionLayer with names, defaults and a fill for rows in which every key is masked; see attention_layer.h
// for the arithmetic.
//
//   form                   parameters                                             dropouts   empty row
//   SelfAttentionV1        query_proj key_proj value_proj [E, E]                             kMean
//   SelfAttentionV2        proj [3E, E]; output_proj by option or file                       kMean
//   SelfAttentionV3        proj [3E, E], output_proj                              0.1, 0     kMean
//   SelfAttentionV4        query_proj key_proj value_proj output_proj             0.1, 0     kMean
//   SelfAttention          W_Q W_K W_V [d_k, E]; out [B, T, d_k]                             kMean
//   SingleHeadAttention    W_q W_k W_v W_o, no biases; causal                     0.1, 0.1   kNaN
//   MultiHeadAttention     q_proj k_proj v_proj o_proj; H heads                   0.1, 0.1   kMean
//   GroupedQueryAttention  q_proj o_proj of H heads, k_proj v_proj of Hkv; no biases         kZero
// Dropouts: of weights, of the output; none where none is said. All take a mask. Scale 1/sqrt(head width).
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

enum class Form { kV1, kV2, kV3, kV4, kSelfAttention, kSingleHead, kMultiHead, kGroupedQuery };

/// The row of the table above.
QKV_API const AttentionForm& form_of(Form form);

/// Throws OptionError for sizes that do not divide, or a number of heads that is not given.
template <Form kForm> class QKV_API FormLayer : public AttentionLayer {
 public:
  explicit FormLayer(const LayerConfig& config) : AttentionLayer(form_of(kForm), config) {}
};

using SelfAttentionV1 = FormLayer<Form::kV1>;
using SelfAttentionV2 = FormLayer<Form::kV2>;
using SelfAttentionV3 = FormLayer<Form::kV3>;
using SelfAttentionV4 = FormLayer<Form::kV4>;
using SelfAttention = FormLayer<Form::kSelfAttention>;
using SingleHeadAttention = FormLayer<Form::kSingleHead>;
/// H heads of width E / H side by side. Reads a file of torch.nn.MultiheadAttention too: in_proj_weight in_proj_bias
/// out_proj.
///   MultiHeadAttention mha({.embed_dim = 512, .num_heads = 8});
using MultiHeadAttention = FormLayer<Form::kMultiHead>;
/// H query heads that share Hkv key/value heads, as in Llama, Qwen and OLMo (Ainslie 2023, arXiv:2305.13245), under
/// Hugging Face's names. Biases of q, k, v and of o are independent (Qwen 2 has the first, GPT-OSS both). Norms
/// q_norm.weight and k_norm.weight: [D] (Qwen 3), or [H D] and [Hkv D] (OLMo 2). Query head h reads key/value head h /
/// (H / Hkv); nothing is copied. Not causal unless `causal` is set, as for the other forms.
///   GroupedQueryAttention attention(
///       {.embed_dim = 512, .num_heads = 8, .num_kv_heads = 2, .rotary = RotaryOptions{}, .causal = true});
using GroupedQueryAttention = FormLayer<Form::kGroupedQuery>;

/// The same layer in the other form: bit-identical parameters (rows of `proj` in the order q, k, v), all options kept.
/// V1 has no output projection: to_v1 of a V2 that has one throws OptionError.
QKV_API SelfAttentionV1 to_v1(const SelfAttentionV2& layer);
QKV_API SelfAttentionV2 to_v2(const SelfAttentionV1& layer);
QKV_API SelfAttentionV3 to_v3(const SelfAttentionV4& layer);
QKV_API SelfAttentionV4 to_v4(const SelfAttentionV3& layer);

}  // namespace qkv::inline v0::nn
