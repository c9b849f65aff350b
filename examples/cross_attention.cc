// Cross-attention: 3 queries attend to 7 keys; values are wider than keys. A causal mask needs to know where its
// diagonal ends.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Tensor<float> q = random_tensor({1, 2, 3, 4}, 1);  // [B, H, Tq, D]
  const qkv::Tensor<float> k = random_tensor({1, 2, 7, 4}, 2);  // [B, H, Tk, D]
  const qkv::Tensor<float> v = random_tensor({1, 2, 7, 6}, 3);  // [B, H, Tk, Dv]
  qkv::Tensor<float> out({1, 2, 3, 6}), weights({1, 2, 3, 7});  // [B, H, Tq, Dv], [B, H, Tq, Tk]
  qkv::attention_forward(q, k, v, {.out = out});
  qkv::attention_forward(q, k, {}, {.weights = weights});
  print_table("all keys:", {weights.data(), {3, 7}});

  bool refused = false;
  try {
    qkv::attention_forward(q, k, {}, {.weights = weights}, {.mask = qkv::Mask::causal()});
  } catch (const qkv::Error& error) {
    refused = true;
    std::printf("refused: %s\n", error.what());
  }
  qkv::attention_forward(q, k, {}, {.weights = weights}, {.mask = qkv::Mask::causal(qkv::Align::kBottomRight)});
  print_table("causal, the last query sees the last key:", {weights.data(), {3, 7}});
  const bool bottom_right = weights.view<4>()(0, 0, 0, 4) > 0 && weights.view<4>()(0, 0, 0, 5) == 0;
  qkv::attention_forward(q, k, {}, {.weights = weights}, {.mask = qkv::Mask::causal(qkv::Align::kTopLeft)});
  print_table("causal, query 0 sees key 0:", {weights.data(), {3, 7}});
  const bool top_left = weights.view<4>()(0, 0, 0, 0) == 1 && weights.view<4>()(0, 0, 2, 3) == 0;
  return verdict(refused && bottom_right && top_left, "Tq != Tk needs an alignment, and both are as drawn");
}
