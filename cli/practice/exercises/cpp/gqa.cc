// Grouped-query attention: several query heads share one head of keys and values. Named in article 003, an extension
// here.
//
//     x               [B, L, E]       a sequence of L tokens
//     W_q, W_o        [E, E]          y = x W, no biases
//     W_k, W_v        [E, Hkv d]      d = E / H
//     num_heads       H               heads of queries
//     num_kv_heads    Hkv             heads of keys and values; H is a multiple of it
//     returns out [B, L, E]
//
// Neighbours share: with H = 6 and Hkv = 2 the query heads 0, 1, 2 read keys and values 0, the heads 3, 4, 5 read 1. No
// mask. Judged: which query head reads which keys; how heads are cut and joined; the scale.

#include "given.h"

Array gqa(const Array& x, const Parameters& p, Index num_heads, Index num_kv_heads) {
  // solution: projections, attention of each query head on the keys of its group, output projection
  const Index B = x.sizes[0], L = x.sizes[1], E = x.sizes[2], d = E / num_heads, group = num_heads / num_kv_heads;
  const Array q = linear(x, p.W_q, {}), k = linear(x, p.W_k, {}),
              v = linear(x, p.W_v, {});  // [B, L, E], twice [B, L, Hkv d]
  Array context({B, L, E});
  std::vector<double> weights(L);
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      const Index own = h * d, shared = h / group * d;  // first columns: of the queries, of their keys and values
      for (Index i = 0; i < L; ++i) {
        for (Index j = 0; j < L; ++j) {
          double score = 0;
          for (Index c = 0; c < d; ++c) score += q(b, i, own + c) * k(b, j, shared + c);
          weights[j] = score / std::sqrt(d);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < L; ++j) {
          for (Index c = 0; c < d; ++c) context(b, i, own + c) += weights[j] / sum * v(b, j, shared + c);
        }
      }
    }
  }
  return linear(context, p.W_o, {});  // [B, L, E]
  // end
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    return Answer{{"out", gqa(probe["x"], Parameters(probe), probe.integer("heads"), probe.integer("kv_heads"))}};
  });
}
