// Attention over parts of the keys, merged by lse: the basis of caches, long sequences and several machines.
#include <array>

#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Index queries = 3, keys = 10, width = 4;
  const qkv::Tensor<float> q = random_tensor({1, 2, queries, width}, 1);  // [B, H, Tq, D]
  const qkv::Tensor<float> k = random_tensor({1, 2, keys, width}, 2);     // [B, H, Tk, D]
  const qkv::Tensor<float> v = random_tensor({1, 2, keys, width}, 3);     // [B, H, Tk, Dv]
  qkv::Tensor<float> out(q.sizes()), lse({1, 2, queries});
  qkv::attention_forward(q, k, v, {.out = out, .lse = lse});

  const std::array<qkv::Index, 4> cuts = {0, 4, 4, keys};  // the part in the middle is empty: lse = -inf, the identity
  std::array<qkv::Tensor<float>, 3> part_outs, part_lses;
  std::vector<qkv::View<const float, 4>> outs;
  std::vector<qkv::View<const float, 3>> lses;
  for (std::size_t n = 0; n < 3; ++n) {
    part_outs[n] = qkv::Tensor<float>({1, 2, queries, width});
    part_lses[n] = qkv::Tensor<float>({1, 2, queries});
    const auto part = [&](const qkv::Tensor<float>& tensor) {
      return tensor.view<4>().sliced(2, cuts[n], cuts[n + 1]);
    };
    qkv::attention_forward(q, part(k), part(v), {.out = part_outs[n], .lse = part_lses[n]});
    std::printf("keys [%d, %d): lse of query 0 %.4f\n", static_cast<int>(cuts[n]), static_cast<int>(cuts[n + 1]),
        static_cast<double>(part_lses[n].data()[0]));
    outs.push_back(part_outs[n]);
    lses.push_back(part_lses[n]);
  }
  qkv::Tensor<float> merged(q.sizes()), merged_lse({1, 2, queries});
  qkv::merge_attention(outs, lses, merged, merged_lse);
  const double difference = std::max(largest_difference(out, merged), largest_difference(lse, merged_lse));
  std::printf("merged against all keys at once: %.1e\n", difference);
  return verdict(difference < 1e-6, "attention over parts, merged, is attention");
}
