// Tensor parallelism in one process: two shards split the heads, and the output projection by columns; their sum is the
// layer.
#include "qkv/nn/sharding.h"

#include "example.h"

namespace nn = qkv::nn;

int main() {
  nn::GroupedQueryAttention layer(
      {.embed_dim = 64, .num_heads = 8, .num_kv_heads = 2, .rotary = qkv::RotaryOptions{}, .causal = true, .seed = 1});
  const qkv::Tensor<float> x = random_tensor({2, 10, 64}, 2), dy = random_tensor({2, 10, 64}, 3);  // [B, T, E]
  nn::Saved saved;
  const qkv::Tensor<float> y = layer.forward(x, {}, &saved), dx = layer.backward(dy, saved);

  constexpr qkv::Index parts = 2;
  qkv::Tensor<float> y_sum(y.sizes()), dx_sum(dx.sizes());
  const auto add = [](qkv::Tensor<float>& sum,
                       const qkv::Tensor<float>& part) {  // what an all-reduce does between machines
    for (qkv::Index n = 0; n < sum.count(); ++n) sum.data()[n] += part.data()[n];
  };
  layer.zero_gradients();
  for (qkv::Index part = 0; part < parts; ++part) {
    nn::GroupedQueryAttention own = nn::shard(layer, part, parts);  // 4 query heads, 1 key/value head
    nn::Saved own_saved;
    add(y_sum, own.forward(x, {}, &own_saved));
    add(dx_sum, own.backward(dy, own_saved));
    nn::add_shard_gradients(layer, own, part, parts);
    std::printf("shard %lld: %lld of %lld parameters\n", static_cast<long long>(part),
        static_cast<long long>(own.parameter_count()), static_cast<long long>(layer.parameter_count()));
  }
  const double forward = largest_difference(y_sum, y), backward = largest_difference(dx_sum, dx);
  std::printf("largest difference: forward %.1e, backward %.1e\n", forward, backward);
  return verdict(forward < 1e-5 && backward < 1e-5, "the sum of the shards is the layer, up to the order of one sum");
}
