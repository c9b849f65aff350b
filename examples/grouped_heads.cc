// Grouped heads: 8 query heads share 2 key/value heads. The shapes say so; nothing is copied.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Index heads = 8, kv_heads = 2, length = 6, width = 16;
  const qkv::Tensor<float> q = random_tensor({1, heads, length, width}, 1);     // [B, H, T, D]
  const qkv::Tensor<float> k = random_tensor({1, kv_heads, length, width}, 2);  // [B, Hkv, T, D]
  const qkv::Tensor<float> v = random_tensor({1, kv_heads, length, width}, 3);  // [B, Hkv, T, Dv]
  qkv::Tensor<float> out(q.sizes()), expected(q.sizes());
  qkv::attention_forward(q, k, v, {.out = out});

  // Query head h reads key/value head h / (H / Hkv): equal to attention with each key/value head repeated for its
  // queries.
  qkv::Tensor<float> repeated_k(q.sizes()), repeated_v(q.sizes());
  const qkv::Index one = length * width;
  for (qkv::Index h = 0; h < heads; ++h) {
    std::copy_n(k.data() + h / (heads / kv_heads) * one, one, repeated_k.data() + h * one);
    std::copy_n(v.data() + h / (heads / kv_heads) * one, one, repeated_v.data() + h * one);
  }
  qkv::attention_forward(q, repeated_k, repeated_v, {.out = expected});
  const double difference = largest_difference(out, expected);
  std::printf("keys and values: %lld numbers instead of %lld; difference %.1e\n",
      static_cast<long long>(k.count() + v.count()), static_cast<long long>(repeated_k.count() + repeated_v.count()),
      difference);
  return verdict(difference == 0, "grouped heads are repeated heads, without the copy");
}
