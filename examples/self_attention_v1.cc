// SelfAttentionV1: softmax(Q K^T / sqrt(E)) V, three projections, exactly the formula. Forward and backward.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::Index batch = 3, length = 2, width = 4;
  qkv::nn::SelfAttentionV1 layer({.embed_dim = width, .seed = 1});
  const qkv::Tensor<float> x = random_tensor({batch, length, width}, 2);  // [B, T, E]
  qkv::Tensor<float> weights;                                             // [B, 1, T, T]
  qkv::nn::Saved saved;
  const qkv::Tensor<float> y = layer.forward(x, {.weights = &weights}, &saved);  // [B, T, E]
  print_table("weights of the first sequence:", {weights.data(), {length, length}});

  // y[b, i, :] = sum_j weights[b, i, j] v[b, j, :]; v is the last third of the projection, [B, T, 3E].
  qkv::Tensor<float> by_hand({batch, length, width});
  const auto v = saved.projected.view<3>().sliced(2, 2 * width, 3 * width);
  for (qkv::Index b = 0; b < batch; ++b) {
    for (qkv::Index i = 0; i < length; ++i) {
      for (qkv::Index j = 0; j < length; ++j) {
        for (qkv::Index e = 0; e < width; ++e) by_hand.view<3>()(b, i, e) += weights.view<4>()(b, 0, i, j) * v(b, j, e);
      }
    }
  }
  const double difference = largest_difference(y, by_hand);
  std::printf("y against weights * v by hand: %.1e\n", difference);

  // Loss = sum of y. A row of weights sums to 1, so each value bias has the gradient B * T.
  qkv::Tensor<float> dy({batch, length, width});
  std::fill(dy.span().begin(), dy.span().end(), 1.0F);
  const qkv::Tensor<float> dx = layer.backward(dy, saved);
  const qkv::Tensor<float> gradient = qkv::to_f32(layer.gradients().at("value_proj.bias"));
  std::printf("gradient of value_proj.bias: %.4f (B * T = %d)\n", static_cast<double>(gradient.data()[0]), 6);
  const bool held = difference < 1e-6 && std::abs(gradient.data()[0] - 6.0F) < 1e-5F && dx.sizes() == x.sizes();
  return verdict(held, "output and gradient are those of the formula");
}
