// The exercise sdpa, filled in; contracts.txt says what is asked for.
#include "given.h"

Array sdpa(const Array& q, const Array& k, const Array& v, const Array& mask) {
  // solution: for each query: scores, scale, mask, softmax, values
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  Array out({B, H, Tq, d});
  constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the score of a hidden key
  std::vector<double> weights(Tk);                                      // of one query: nothing of Tq x Tk is needed
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        for (Index j = 0; j < Tk; ++j) {
          double score = 0;
          for (Index c = 0; c < d; ++c) score += q(b, h, i, c) * k(b, h, j, c);
          const bool visible = mask.empty() || mask(b, 0, i, j) != 0;
          weights[j] = visible ? score / std::sqrt(d) : kHidden;  // before the softmax: the rest still sums to 1
        }
        const double largest = *std::ranges::max_element(weights);
        if (largest == kHidden) continue;  // may attend nowhere: a row of zeros
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);  // exp of 0 at most cannot overflow
        for (Index j = 0; j < Tk; ++j) {
          for (Index c = 0; c < d; ++c) out(b, h, i, c) += weights[j] / sum * v(b, h, j, c);
        }
      }
    }
  }
  return out;
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    return Answer{{"out", sdpa(probe["q"], probe["k"], probe["v"], probe["mask"])}};
  });
}
