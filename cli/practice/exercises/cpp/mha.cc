// The exercise mha, filled in; contracts.txt says what is asked for.
#include "given.h"

Array mha(const Array& x, const Parameters& p, Index num_heads, const Array& mask) {
  // solution: projections, attention of each head on its columns, output projection
  const Index B = x.sizes[0], L = x.sizes[1], E = x.sizes[2], d = E / num_heads;
  const Array q = linear(x, p.W_q, p.b_q), k = linear(x, p.W_k, p.b_k), v = linear(x, p.W_v, p.b_v);  // [B, L, E] each
  constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the score of a hidden key
  Array context({B, L, E});  // head h writes its columns: joined without moving anything
  std::vector<double> weights(L);
  for (Index b = 0; b < B; ++b) {
    for (Index first = 0; first < E; first += d) {  // the first column of a head
      for (Index i = 0; i < L; ++i) {
        for (Index j = 0; j < L; ++j) {
          double score = 0;
          for (Index c = first; c < first + d; ++c) score += q(b, i, c) * k(b, j, c);
          const bool visible = mask.empty() || mask(b, 0, i, j) != 0;
          weights[j] = visible ? score / std::sqrt(d) : kHidden;  // the width of a head, not E
        }
        const double largest = *std::ranges::max_element(weights);
        if (largest == kHidden) continue;  // may attend nowhere: zeros
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < L; ++j) {
          for (Index c = first; c < first + d; ++c) context(b, i, c) += weights[j] / sum * v(b, j, c);
        }
      }
    }
  }
  return linear(context, p.W_o, p.b_o);  // [B, L, E]
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    return Answer{{"out", mha(probe["x"], probe.parameters(), probe.integer("heads"), probe["mask"])}};
  });
}
