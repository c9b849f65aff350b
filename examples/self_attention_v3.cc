// SelfAttentionV3: V2 with an output projection, a mask for padding, and dropout on the weights during training.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  qkv::nn::SelfAttentionV3 layer({.embed_dim = 2, .dropout = 0.5F, .seed = 1});
  const qkv::Tensor<float> x = random_tensor({3, 4, 2}, 2);  // [B, T, E]

  // The sentences have 3, 2 and 1 words: [B, Tk], non-zero = kept.
  qkv::Tensor<std::uint8_t> words({3, 4});
  for (qkv::Index b = 0; b < 3; ++b) {
    for (qkv::Index j = 0; j < 3 - b; ++j) words.view<2>()(b, j) = 1;
  }
  qkv::Tensor<float> weights;  // [B, 1, T, T]
  const qkv::Tensor<float> y = layer.forward(x, {.mask = layer.keep(words), .weights = &weights});
  print_table("second sentence, two words:", {&weights.view<4>()(1, 0, 0, 0), {4, 4}});
  bool hidden = true;
  for (qkv::Index i = 0; i < 4; ++i) {
    hidden = hidden && weights.view<4>()(1, 0, i, 2) == 0 && weights.view<4>()(1, 0, i, 3) == 0 &&
             weights.view<4>()(2, 0, i, 0) == 1;
  }

  layer.train();
  qkv::Tensor<float> applied;  // [B, 1, T, T]: the weights that multiplied v
  const qkv::Tensor<float> once = layer.forward(x, {.mask = layer.keep(words), .seed = 7, .applied = &applied});
  const qkv::Tensor<float> again = layer.forward(x, {.mask = layer.keep(words), .seed = 7});
  print_table("the same in training, after dropout 0.5:", {&applied.view<4>()(1, 0, 0, 0), {4, 4}});
  const bool repeats = largest_difference(once, again) == 0 && largest_difference(once, y) > 0;
  return verdict(hidden && repeats, "padding weighs exactly 0; the same seed drops the same weights");
}
