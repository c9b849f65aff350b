// Dropout on the weights: a pure function of seed and position, so it can be inspected, repeated, and recomputed in
// backward.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Index length = 5;
  const qkv::Tensor<float> q = random_tensor({2, 1, length, 4}, 1);  // [B, H, T, D]
  const qkv::Tensor<float> k = random_tensor({2, 1, length, 4}, 2), v = random_tensor({2, 1, length, 4}, 3);
  const qkv::AttentionOptions options{.dropout = {.p = 0.25, .seed = 42, .training = true}};
  qkv::Tensor<float> factors({2, 1, length, length}), softmax(factors.sizes()),
      applied(factors.sizes());  // [B, H, T, T]
  qkv::dropout_factors(options.dropout, factors);
  qkv::attention_forward(q, k, {}, {.weights = softmax}, options);
  qkv::attention_forward(q, k, {}, {.weights = applied, .kind = qkv::WeightsKind::kApplied}, options);
  print_table("0, or 1 / (1 - p):", {factors.data(), {length, length}});
  print_table("what multiplies v:", {applied.data(), {length, length}});
  bool product = true;
  for (qkv::Index n = 0; n < applied.count(); ++n)
    product = product && applied.data()[n] == softmax.data()[n] * factors.data()[n];

  // The second sequence alone, with its index in the batch, gives the same bits; so does any number of threads.
  qkv::Tensor<float> batch({2, 1, length, 4}), alone({1, 1, length, 4});
  qkv::Context one({.threads = 1});
  qkv::attention_forward(q, k, v, {.out = batch}, options);
  auto second = options;
  second.dropout.first_sequence = 1;
  const auto last = [](const qkv::Tensor<float>& tensor) { return tensor.view<4>().sliced(0, 1, 2); };
  qkv::attention_forward(last(q), last(k), last(v), {.out = alone}, second, one);
  const bool same = std::equal(alone.span().begin(), alone.span().end(), batch.data() + alone.count());
  return verdict(
      product && same, "applied = softmax * factors; a sequence alone gets the bits that it had in the batch");
}
