// The exercise backward, filled in; contracts.txt says what is asked for.
#include "given.h"

struct Gradients {
  Array dq, dk, dv;
};

Gradients attention_backward(const Array& q, const Array& k, const Array& v, const Array& dout, bool causal) {
  // solution: for each query: weights again, then back through values, softmax, scale and scores
  const Index B = q.sizes[0], H = q.sizes[1], Tq = q.sizes[2], Tk = k.sizes[2], d = q.sizes[3];
  const double scale = 1 / std::sqrt(d);
  Gradients g{Array(q.sizes), Array(k.sizes), Array(v.sizes)};
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < Tq; ++i) {
        const Index visible = causal ? i + (Tk - Tq) + 1 : Tk;
        std::vector<double> weights(visible), dweights(visible);
        for (Index j = 0; j < visible; ++j) {
          for (Index c = 0; c < d; ++c) {
            weights[j] += q(b, h, i, c) * k(b, h, j, c) * scale;
            dweights[j] += dout(b, h, i, c) * v(b, h, j, c);  // out = sum over j of weights[j] v[j]
          }
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0, row = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (Index j = 0; j < visible; ++j) {
          weights[j] /= sum;
          row += weights[j] * dweights[j];  // softmax binds the weights of a row
        }
        for (Index j = 0; j < visible; ++j) {
          const double dscore = weights[j] * (dweights[j] - row);
          for (Index c = 0; c < d; ++c) {
            g.dq(b, h, i, c) += dscore * k(b, h, j, c) * scale;
            g.dk(b, h, j, c) += dscore * q(b, h, i, c) * scale;
            g.dv(b, h, j, c) += weights[j] * dout(b, h, i, c);
          }
        }
      }
    }
  }
  return g;
}

int main(int count, char** arguments) {
  return run(count, arguments, [](const Probe& probe) {
    const Gradients g =
        attention_backward(probe["q"], probe["k"], probe["v"], probe["dout"], probe.integer("causal") == 1);
    return Answer{{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}};
  });
}
