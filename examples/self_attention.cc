// SelfAttention: projections of their own width d_k, no output projection; the output is [B, T, d_k], the scale
// 1/sqrt(d_k).
#include "qkv/nn/self_attention.h"

#include "example.h"
#include "qkv/attention.h"

int main() {
  const qkv::Index embed_dim = 8, d_k = 3;
  const qkv::nn::SelfAttention layer({.embed_dim = embed_dim, .d_k = d_k, .seed = 1});
  const qkv::Tensor<float> x = random_tensor({2, 5, embed_dim}, 2);  // [B, T, E]
  qkv::nn::Saved saved;
  const qkv::Tensor<float> y = layer.forward(x, {}, &saved);  // [B, T, d_k]
  std::printf("x %s -> y %s\n", x.shape().c_str(), y.shape().c_str());

  // The same from its parts: q, k, v are side by side in [B, T, 3 d_k]; views, no copies.
  const auto packed = saved.projected.view<3>();
  const auto part = [&](qkv::Index n) {
    return qkv::split_heads(packed.sliced(2, n * d_k, (n + 1) * d_k), 1);
  };  // [B, 1, T, d_k]
  qkv::Tensor<float> out({2, 1, 5, d_k});
  qkv::attention_forward(part(0), part(1), part(2), {.out = out}, {.scale = 1 / std::sqrt(static_cast<double>(d_k))});
  out.reshape({2, 5, d_k});
  const double difference = largest_difference(y, out);
  std::printf("the layer against attention of its parts: %.1e\n", difference);
  return verdict(difference == 0, "a layer is a projection and one call of attention_forward");
}
