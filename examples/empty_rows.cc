// A row in which every key is masked: the three answers that exist, by name. Masks intersect.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Index length = 4;
  const qkv::Tensor<float> q = random_tensor({1, 1, length, 2}, 1);  // [B, H, T, D]
  const qkv::Tensor<float> k = random_tensor({1, 1, length, 2}, 2), v = random_tensor({1, 1, length, 2}, 3);
  qkv::Tensor<std::uint8_t> drop({length, length});  // [Tq, Tk]; non-zero = masked
  for (qkv::Index j = 0; j < length; ++j) drop.view<2>()(2, j) = 1;
  const qkv::Mask mask = qkv::Mask::causal() & qkv::Mask::drop(drop.view<2>(), qkv::MaskAxes::kQk);
  std::printf("mask: %s\n", mask.describe().c_str());

  qkv::Tensor<float> weights({1, 1, length, length}), out({1, 1, length, 2}), lse({1, 1, length});
  bool held = true;
  const auto show = [&](const char* title, qkv::EmptyRow empty_row) {
    qkv::attention_forward(q, k, {}, {.weights = weights}, {.mask = mask, .empty_row = empty_row});
    qkv::attention_forward(q, k, v, {.out = out, .lse = lse}, {.mask = mask, .empty_row = empty_row});
    print_table(title, {weights.data(), {length, length}});
    held = held && lse.data()[2] == -INFINITY;  // for every fill
    return weights.view<4>()(0, 0, 2, 3);       // the empty row at a key that is in the future too
  };
  held = show("kZero, the default: the row gives nothing", qkv::EmptyRow::kZero) == 0 && out.data()[4] == 0 && held;
  held = show("kMean, as a finite fill such as -1e20: the mean of all keys, future ones too", qkv::EmptyRow::kMean) ==
             0.25F &&
         held;
  held = std::isnan(show("kNaN, as a fill of -inf", qkv::EmptyRow::kNaN)) && std::isnan(out.data()[4]) && held;
  return verdict(held, "zero, mean and NaN rows; the other rows are the same in all three");
}
