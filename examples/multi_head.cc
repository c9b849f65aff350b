// MultiHeadAttention: 8 heads of width 16 in [B, T, 128], with a mask that leaves empty rows, filled in both usual
// ways.
#include "example.h"
#include "qkv/nn/self_attention.h"

int main() {
  const qkv::nn::MultiHeadAttention layer({.embed_dim = 128, .num_heads = 8, .seed = 1});
  const qkv::Tensor<float> x = random_tensor({3, 2, 128}, 2);  // [B, T, E]
  qkv::Tensor<std::uint8_t> keep({3, 2});                      // [B, Tk]: keys 1; none; 0
  keep.view<2>()(0, 1) = keep.view<2>()(2, 0) = 1;

  qkv::Tensor<float> weights;  // [B, H, T, T]
  const qkv::Tensor<float> mean = layer.forward(x, {.mask = layer.keep(keep), .weights = &weights});
  std::printf("x %s -> y %s, weights %s\n", x.shape().c_str(), mean.shape().c_str(), weights.shape().c_str());
  print_table("sequence 0, head 3:", {&weights.view<4>()(0, 3, 0, 0), {2, 2}});
  print_table(
      "sequence 1, head 3, no key may be attended; a fill of -1e20 (kMean):", {&weights.view<4>()(1, 3, 0, 0), {2, 2}});
  const bool half = weights.view<4>()(1, 3, 0, 0) == 0.5F && weights.view<4>()(0, 3, 0, 1) == 1.0F;

  const qkv::Tensor<float> nan =
      layer.forward(x, {.mask = layer.keep(keep), .empty_row = qkv::EmptyRow::kNaN, .weights = &weights});
  print_table("the same with a fill of -inf (kNaN):", {&weights.view<4>()(1, 3, 0, 0), {2, 2}});
  bool as_said = true;  // sequence 1 is NaN, the others are bit-identical
  for (qkv::Index n = 0; n < nan.count(); ++n) {
    const bool second = n / (2 * 128) == 1;
    as_said = as_said && (second ? std::isnan(nan.data()[n]) : nan.data()[n] == mean.data()[n]);
  }
  return verdict(half && as_said, "8 heads, and an empty row is what its fill makes of it");
}
