// MultiHeadAttention: H heads of width E / H side by side. AttentionLayer with names and defaults; see there for the
// arithmetic.
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

/// Parameters q_proj k_proj v_proj o_proj; from a file of torch.nn.MultiheadAttention in_proj_weight in_proj_bias out_proj.
/// Scale 1/sqrt(head_dim). Defaults: dropout 0.1 on weights and on the output, empty rows kMean.
///   MultiHeadAttention mha({.embed_dim = 512, .num_heads = 8});
/// Throws OptionError when num_heads does not divide embed_dim.
class QKV_API MultiHeadAttention : public AttentionLayer {
 public:
  explicit MultiHeadAttention(const LayerConfig& config);
};

}  // namespace qkv::inline v0::nn
