// A Llama-like layer: 8 query heads, 2 key/value heads, rotary positions; a prompt at once, then token by token.
#include "example.h"
#include "qkv/nn/self_attention.h"

namespace nn = qkv::nn;

int main() {
  nn::GroupedQueryAttention layer({.embed_dim = 64,
      .num_heads = 8,
      .num_kv_heads = 2,
      .rotary = qkv::RotaryOptions{.base = 500000},
      .causal = true,
      .seed = 1});
  const qkv::Tensor<float> x = random_tensor({1, 12, 64}, 2);  // [B, T, E]
  const qkv::Tensor<float> whole = layer.forward(x);

  qkv::KVCache cache({.num_kv_heads = 2, .head_dim = 8, .capacity = 12});
  nn::StepMemory memory;
  qkv::Tensor<float> y(x.sizes());
  const qkv::View<const float, 3> tokens = x;
  const qkv::View<float, 3> outputs = y;
  layer.step(tokens.sliced(1, 0, 8), outputs.sliced(1, 0, 8), cache, memory);  // the prompt
  for (qkv::Index t = 8; t < 12; ++t)
    layer.step(tokens.sliced(1, t, t + 1), outputs.sliced(1, t, t + 1), cache, memory);

  const double difference = largest_difference(y, whole);
  std::printf("the cache holds %lld numbers a token instead of %d; largest difference %.1e\n",
      static_cast<long long>(cache.bytes() / sizeof(float) / 12), 2 * 64, difference);
  return verdict(difference < 1e-5, "steps with a cache are the forward of the whole sequence");
}
