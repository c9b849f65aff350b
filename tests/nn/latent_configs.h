// The latent attention layers that tests are run on.
#pragma once

#include <algorithm>
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

/// All tokens of x through steps on a cache, tokens(done) of them at a time.
template <class Tokens> Tensor<float> stepped(const nn::MultiHeadLatentAttention& layer, const Tensor<float>& x,
    KVCache& cache, const Tokens& tokens, const Mask& mask = {}, nn::MultiHeadLatentAttention::Form form = {},
    Context& context = Context::default_context()) {
  nn::LatentStepMemory memory;
  Tensor<float> y(x.sizes());
  const Index batch = x.size(0), length = x.size(1), width = x.size(2);
  for (Index done = 0, n = 0; done < length; done += n) {
    n = std::min(length - done, tokens(done));
    Tensor<float> part({batch, n, width});
    layer.step(View<const float, 3>(x).sliced(1, done, done + n), part, cache, memory, mask, form, context);
    for (Index b = 0; b < batch; ++b) {
      std::copy_n(part.data() + b * n * width, n * width, y.data() + (b * length + done) * width);
    }
  }
  return y;
}
/// A prefill, then a few tokens and single ones.
inline Index prefill_and_single(Index done) { return done == 0 ? 11 : done % 3 == 0 ? 4 : 1; }

}  // namespace qkv::test
