// The exercise flash, filled in; contracts.txt says what is asked for.
#include "given.h"

Array flash(const Array& q, const Array& k, const Array& v, Index block_size, bool causal) {
  // solution: for each query and block: scores, new maximum, rescale what was summed, add
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  Array out({B, H, Tq, d});
  std::vector<double> scores(std::min(block_size, Tk));  // all the memory that a row needs
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index visible = causal ? i + (Tk - Tq) + 1 : Tk;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (Index begin = 0; begin < visible; begin += block_size) {
          const Index n = std::min(block_size, visible - begin);  // the last block may be short
          double next = largest;
          for (Index j = 0; j < n; ++j) {
            scores[j] = 0;
            for (Index c = 0; c < d; ++c) scores[j] += q(b, h, i, c) * k(b, h, begin + j, c) / std::sqrt(d);
            next = std::max(next, scores[j]);
          }
          const double rescale = std::exp(largest - next);  // sums so far had the old maximum in their exponents
          total *= rescale;
          for (Index c = 0; c < d; ++c) out(b, h, i, c) *= rescale;
          for (Index j = 0; j < n; ++j) {
            const double weight = std::exp(scores[j] - next);
            total += weight;
            for (Index c = 0; c < d; ++c) out(b, h, i, c) += weight * v(b, h, begin + j, c);
          }
          largest = next;
        }
        for (Index c = 0; c < d; ++c) out(b, h, i, c) /= total;  // once, at the end
      }
    }
  }
  return out;
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    return Answer{
        {"out", flash(probe["q"], probe["k"], probe["v"], probe.integer("block"), probe.integer("causal") == 1)}};
  });
}
