// SelfAttentionV4: V3 with three projections again. In evaluation mode it equals V3; a mask changes only what it hides.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::nn::SelfAttentionV4 v4({.embed_dim = 2, .seed = 1});
  const qkv::nn::SelfAttentionV3 v3 = qkv::nn::to_v3(v4);
  const qkv::StateDict state = v4.state_dict();
  for (const auto& [name, tensor] : state.entries()) std::printf("%-20s %s\n", name.c_str(), tensor.shape().c_str());

  // The mask in full, [B, Tq, Tk]: every query of a sentence attends to its 3, 2 or 1 words.
  qkv::Tensor<std::uint8_t> words({3, 4, 4});
  for (qkv::Index b = 0; b < 3; ++b) {
    for (qkv::Index i = 0; i < 4; ++i) {
      for (qkv::Index j = 0; j < 3 - b; ++j) words.view<3>()(b, i, j) = 1;
    }
  }
  qkv::Tensor<float> x = random_tensor({3, 4, 2}, 2);  // [B, T, E]
  const qkv::Tensor<float> y = v4.forward(x, {.mask = v4.keep(words)});
  const double difference = largest_difference(y, v3.forward(x, {.mask = v3.keep(words)}));
  std::printf("V3 against V4: %.1e\n", difference);

  // Other padding, the same words: the outputs at the words must stay bit-identical.
  for (qkv::Index e = 0; e < 2; ++e) x.view<3>()(0, 3, e) = 1000.0F;
  const qkv::Tensor<float> other = v4.forward(x, {.mask = v4.keep(words)});
  bool same = true;
  for (qkv::Index n = 0; n < 3 * 2; ++n) same = same && y.data()[n] == other.data()[n];
  return verdict(difference < 1e-6 && same, "V3 = V4, and padding is invisible");
}
