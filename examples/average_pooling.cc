// Why attention exists: an average, and a learned weight per position, mix the five words of "I like the blue sky" and
// of "I like the red sky" in the same proportions. Attention chooses by the words.
#include "example.h"
#include "qkv/nn/average.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::Index words = 5, width = 4;
  qkv::Tensor<float> x({2, words, width});                             // [B, T, E]: two sentences
  const qkv::Tensor<float> vocabulary = random_tensor({6, width}, 1);  // I like the blue sky red
  const qkv::Index sentences[2][5] = {{0, 1, 2, 3, 4}, {0, 1, 2, 5, 4}};
  for (qkv::Index b = 0; b < 2; ++b) {
    for (qkv::Index i = 0; i < words; ++i) {
      for (qkv::Index e = 0; e < width; ++e) x.view<3>()(b, i, e) = vocabulary.view<2>()(sentences[b][i], e);
    }
  }
  const qkv::Tensor<float> averaged = qkv::nn::AveragePooling().forward(x);

  qkv::nn::FixedWeights fixed({.length = words, .seed = 2});
  const qkv::Tensor<float> mixed = fixed.forward(x);
  const auto w = fixed.parameters()[0].value;
  float sum = 0;
  for (const float one : w) sum += one;
  double worst = 0;  // the sentences differ by w[3] / sum(w) of (blue - red), whatever the other words are
  for (qkv::Index e = 0; e < width; ++e) {
    const float share =
        (mixed.view<3>()(0, 0, e) - mixed.view<3>()(1, 0, e)) / (x.view<3>()(0, 3, e) - x.view<3>()(1, 3, e));
    worst = std::max(worst, static_cast<double>(std::abs(share - w[3] / sum)));
  }
  qkv::Tensor<float> weights;  // [B, H, T, T]
  const qkv::Tensor<float> attended =
      qkv::nn::SelfAttentionV1({.embed_dim = width, .seed = 3}).forward(x, {.weights = &weights});
  std::printf("share of word 4: average %.3f, fixed weight %.3f, in both sentences\n", 1.0 / words,
      static_cast<double>(w[3] / sum));
  print_table("attention of word 4, \"blue\":", {&weights.view<4>()(0, 0, 3, 0), {1, words}});
  print_table("attention of word 4, \"red\":", {&weights.view<4>()(1, 0, 3, 0), {1, words}});
  const bool differs = std::abs(weights.view<4>()(0, 0, 3, 0) - weights.view<4>()(1, 0, 3, 0)) > 1e-3F;
  return verdict(
      worst < 1e-4 && differs && averaged.count() == attended.count(), "only attention's weights depend on the word");
}
