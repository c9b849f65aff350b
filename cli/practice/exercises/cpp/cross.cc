// Cross-attention: queries of one sequence, keys and values of another, as a decoder reads an encoder. Article 002.
//
//     x                       [B, L, E]       asks
//     memory                  [B, M, E]       answers; M is not L
//     W_q, W_k, W_v, W_o      [E, E]          y = x W + b
//     b_q, b_k, b_v, b_o      [E]
//     num_heads               H               a head has d = E / H columns; head h takes the columns h d to (h + 1) d
//     mask                    [B, 1, L, M]    1: token i of x may look at token j of memory. Empty: at all
//     returns out [B, L, E]
//
// Judged: what is projected from which sequence; heads; the mask.

#include "given.h"

Array cross_attention(const Array& x, const Array& memory, const Parameters& p, Index num_heads, const Array& mask) {
  // solution: queries of x, keys and values of memory, attention of each head, output projection
  const Index B = x.sizes[0], L = x.sizes[1], E = x.sizes[2], M = memory.sizes[1], d = E / num_heads;
  const Array q = linear(x, p.W_q, p.b_q);                                         // [B, L, E]
  const Array k = linear(memory, p.W_k, p.b_k), v = linear(memory, p.W_v, p.b_v);  // [B, M, E]
  constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the score of a key that may not be seen
  Array context({B, L, E});
  std::vector<double> weights(M);
  for (Index b = 0; b < B; ++b) {
    for (Index first = 0; first < E; first += d) {  // the first column of a head
      for (Index i = 0; i < L; ++i) {
        for (Index j = 0; j < M; ++j) {
          double score = 0;
          for (Index c = first; c < first + d; ++c) score += q(b, i, c) * k(b, j, c);
          const bool seen = mask.empty() || mask(b, 0, i, j) != 0;
          weights[j] = seen ? score / std::sqrt(d) : kHidden;
        }
        const double largest = *std::ranges::max_element(weights);
        if (largest == kHidden) continue;  // may look nowhere: zeros
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < M; ++j) {
          for (Index c = first; c < first + d; ++c) context(b, i, c) += weights[j] / sum * v(b, j, c);
        }
      }
    }
  }
  return linear(context, p.W_o, p.b_o);  // [B, L, E]
  // end
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    const Parameters p(probe);
    return Answer{{"out", cross_attention(probe["x"], probe["memory"], p, probe.integer("heads"), probe["mask"])}};
  });
}
