// The exercise rope, filled in; contracts.txt says what is asked for.
#include "given.h"

Array rope(const Array& x, const Array& positions, double base) {
  // solution: an angle for each token and pair, then the rotation
  const Index B = x.sizes[0], H = x.sizes[1], T = x.sizes[2], half = x.sizes[3] / 2;
  Array y(x.sizes);
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index t = 0; t < T; ++t) {
        for (Index i = 0; i < half; ++i) {
          const double angle = positions(t) * std::pow(base, -static_cast<double>(i) / half);  // 2i / d is i / half
          const double first = x(b, h, t, i), second = x(b, h, t, half + i);
          y(b, h, t, i) = first * std::cos(angle) - second * std::sin(angle);
          y(b, h, t, half + i) = second * std::cos(angle) + first * std::sin(angle);
        }
      }
    }
  }
  return y;
}

Array rope_attention(const Array& q, const Array& k, const Array& v, const Array& positions, double base) {
  // solution: turn what is compared, then attention
  const Index B = q.sizes[0], H = q.sizes[1], T = q.sizes[2], d = q.sizes[3];
  const Array turned_q = rope(q, positions, base), turned_k = rope(k, positions, base);  // values carry no position
  Array out(q.sizes);
  std::vector<double> weights(T);
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < T; ++i) {
        for (Index j = 0; j < T; ++j) {
          double score = 0;
          for (Index c = 0; c < d; ++c) score += turned_q(b, h, i, c) * turned_k(b, h, j, c);
          weights[j] = score / std::sqrt(d);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < T; ++j) {
          for (Index c = 0; c < d; ++c) out(b, h, i, c) += weights[j] / sum * v(b, h, j, c);
        }
      }
    }
  }
  return out;
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    const Array positions = probe["positions"];
    const double base = probe.number("base");
    return Answer{{"turned", rope(probe["x"], positions, base)},
        {"out", rope_attention(probe["q"], probe["k"], probe["v"], positions, base)}};
  });
}
