// SingleHeadAttention: four projections without biases, causal by default: what a language model needs.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::Index length = 5, width = 8;
  const qkv::nn::SingleHeadAttention layer({.embed_dim = width, .seed = 1});
  qkv::Tensor<float> x = random_tensor({1, length, width}, 2);  // [B, T, E]
  qkv::Tensor<float> weights;                                   // [B, 1, T, T]
  const qkv::Tensor<float> y = layer.forward(x, {.weights = &weights});
  print_table("causal weights:", {weights.data(), {length, length}});
  bool future_is_zero = true;
  for (qkv::Index i = 0; i < length; ++i) {
    for (qkv::Index j = i + 1; j < length; ++j) future_is_zero = future_is_zero && weights.view<4>()(0, 0, i, j) == 0;
  }

  // Change the last token: everything before it must stay bit-identical. Without the mask everything changes.
  const qkv::Tensor<float> open = layer.forward(x, {.causal = false});
  for (qkv::Index e = 0; e < width; ++e) x.view<3>()(0, length - 1, e) += 1.0F;
  const qkv::Tensor<float> changed = layer.forward(x);
  const qkv::Tensor<float> open_changed = layer.forward(x, {.causal = false});
  bool prefix_same = true, open_moves = false;
  for (qkv::Index n = 0; n < (length - 1) * width; ++n) {
    prefix_same = prefix_same && y.data()[n] == changed.data()[n];
    open_moves = open_moves || open.data()[n] != open_changed.data()[n];
  }
  std::printf("after changing the last token: causal prefix the same bits: %s; without the mask: %s\n",
      prefix_same ? "yes" : "no", open_moves ? "it reads the future" : "the same");
  return verdict(future_is_zero && prefix_same && open_moves, "a causal layer cannot read the future");
}
