// The exercise causal, filled in; contracts.txt says what is asked for.
#include "given.h"

Array causal_attention(const Array& q, const Array& k, const Array& v) {
  // solution: for each query: the keys it sees, their scores, softmax, values
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  Array out({B, H, Tq, d});
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index visible = i + (Tk - Tq) + 1;  // keys 0 to its own position: the future is not computed at all
        std::vector<double> weights(visible);
        for (Index j = 0; j < visible; ++j) {
          for (Index c = 0; c < d; ++c) weights[j] += q(b, h, i, c) * k(b, h, j, c) / std::sqrt(d);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < visible; ++j) {
          for (Index c = 0; c < d; ++c) out(b, h, i, c) += weights[j] / sum * v(b, h, j, c);
        }
      }
    }
  }
  return out;
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    return Answer{{"out", causal_attention(probe["q"], probe["k"], probe["v"])}};
  });
}
