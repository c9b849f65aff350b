// A ragged batch: three sequences of 2, 5 and 1 tokens packed one after the other and separated by offsets; no padding.
#include "example.h"
#include "qkv/varlen.h"

constexpr qkv::Index kHeads = 4, kKvHeads = 2, kWidth = 16;

/// Tokens [begin, end) of [total, heads, width] as one sequence [1, heads, end - begin, width]: a view.
template <class T> qkv::View<T, 4> sequence(T* tokens, qkv::Index heads, qkv::Index begin, qkv::Index end) {
  return {tokens + begin * heads * kWidth, {1, heads, end - begin, kWidth}, {0, kWidth, heads * kWidth, 1}};
}

int main() {
  const std::vector<qkv::Index> offsets{0, 2, 7, 8};  // sequence b has tokens offsets[b] to offsets[b + 1] - 1
  const qkv::Tensor<float> q = random_tensor({8, kHeads, kWidth}, 1);  // [total, H, D]
  const qkv::Tensor<float> k = random_tensor({8, kKvHeads, kWidth}, 2), v = random_tensor({8, kKvHeads, kWidth}, 3);
  qkv::Tensor<float> out(q.sizes()), alone(q.sizes());
  const qkv::AttentionOptions options{.mask = qkv::Mask::causal()};
  qkv::attention_varlen_forward(q, k, v, {.out = out}, {offsets, offsets}, options);

  for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {  // the same, one sequence at a time
    const qkv::Index begin = offsets[b], end = offsets[b + 1];
    qkv::attention_forward(sequence(q.data(), kHeads, begin, end), sequence(k.data(), kKvHeads, begin, end),
        sequence(v.data(), kKvHeads, begin, end), {.out = sequence(alone.data(), kHeads, begin, end)}, options);
  }
  return verdict(largest_difference(out, alone) == 0, "every sequence has the bits that it has alone");
}
