// Scaled dot-product attention whose scale is forgotten: wrong. Right programs are the exercises
// (tests/cli/practice_test.cc).
#include "given.h"

namespace {

Answer sdpa(const Probe& probe) {
  const Array q = probe["q"], k = probe["k"], v = probe["v"], mask = probe["mask"];
  const Index Tk = k.sizes[2];
  Array out({q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]});
  std::vector<double> weights(Tk);
  for (Index b = 0; b < q.sizes[0]; ++b) {
    for (Index h = 0; h < q.sizes[1]; ++h) {
      for (Index i = 0; i < q.sizes[2]; ++i) {
        for (Index j = 0; j < Tk; ++j) {
          weights[j] = 0;
          for (Index c = 0; c < q.sizes[3]; ++c) weights[j] += q(b, h, i, c) * k(b, h, j, c);
          if (!mask.empty() && mask(b, 0, i, j) == 0) weights[j] = -1e9;
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < Tk; ++j) {
          for (Index c = 0; c < v.sizes[3]; ++c) out(b, h, i, c) += weights[j] / sum * v(b, h, j, c);
        }
      }
    }
  }
  return {{"out", out}};
}

}  // namespace

int main(int count, char** arguments) { return run(count, arguments, sdpa); }
