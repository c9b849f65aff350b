// The single-head forms: the ladder V1..V4, SelfAttention with its own width, SingleHeadAttention. Each is AttentionLayer with
// names, defaults and a fill for rows in which every key is masked; see attention_layer.h for the arithmetic.
//
//   form                 parameters                                    masks   dropout defaults (weights, output)   empty row
//   SelfAttentionV1      query_proj key_proj value_proj [E, E]                 0, 0                                  kMean
//   SelfAttentionV2      proj [3E, E]; output_proj by option or file           0, 0                                  kMean
//   SelfAttentionV3      proj [3E, E], output_proj                             0.1, 0                                kMean
//   SelfAttentionV4      query_proj key_proj value_proj output_proj            0.1, 0                                kMean
//   SelfAttention        W_Q W_K W_V [d_k, E]; out [B, T, d_k]                 0, 0                                  kMean
//   SingleHeadAttention  W_q W_k W_v W_o, no biases; causal                    0.1, 0.1                              kNaN
// All take a mask. Scale 1/sqrt(head width).
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

class QKV_API SelfAttentionV1 : public AttentionLayer {
 public:
  explicit SelfAttentionV1(const LayerConfig& config);
};

class QKV_API SelfAttentionV2 : public AttentionLayer {
 public:
  explicit SelfAttentionV2(const LayerConfig& config);
};

class QKV_API SelfAttentionV3 : public AttentionLayer {
 public:
  explicit SelfAttentionV3(const LayerConfig& config);
};

class QKV_API SelfAttentionV4 : public AttentionLayer {
 public:
  explicit SelfAttentionV4(const LayerConfig& config);
};

class QKV_API SelfAttention : public AttentionLayer {
 public:
  explicit SelfAttention(const LayerConfig& config);
};

class QKV_API SingleHeadAttention : public AttentionLayer {
 public:
  explicit SingleHeadAttention(const LayerConfig& config);
};

/// The same layer in the other form: bit-identical parameters (rows of `proj` in the order q, k, v), all options kept.
/// V1 has no output projection: to_v1 of a V2 that has one throws OptionError.
QKV_API SelfAttentionV1 to_v1(const SelfAttentionV2& layer);
QKV_API SelfAttentionV2 to_v2(const SelfAttentionV1& layer);
QKV_API SelfAttentionV3 to_v3(const SelfAttentionV4& layer);
QKV_API SelfAttentionV4 to_v4(const SelfAttentionV3& layer);

}  // namespace qkv::inline v0::nn
