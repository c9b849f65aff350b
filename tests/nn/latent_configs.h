// The latent attention layers that tests are run on.
#pragma once

#include <vector>

#include "qkv/nn/latent_attention.h"

namespace qkv::test {

/// Small; with low-rank queries and biases; with more heads than decode takes rows.
inline std::vector<nn::LatentAttentionConfig> latent_configs(Index embed_dim) {
  const nn::LatentAttentionConfig small{.embed_dim = embed_dim,
                                        .num_heads = 3,
                                        .kv_lora_rank = 20,
                                        .qk_nope_head_dim = 8,
                                        .qk_rope_head_dim = 6,
                                        .v_head_dim = 5,
                                        .seed = 1};
  nn::LatentAttentionConfig ranks = small, many = small;
  ranks.q_lora_rank = 10;
  ranks.bias = true;
  many.num_heads = 20;
  many.v_head_dim = 12;
  return {small, ranks, many};
}

}  // namespace qkv::test
