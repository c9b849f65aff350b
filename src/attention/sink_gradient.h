// The gradient of the sinks, after all items: every row's part, summed in one order.
//   dsink[h] = -sum over b and i of exp(sink[h] - lse[b,h,i]) * delta[b,h,i]        delta = dout . out - dlse
#pragma once

#include <cmath>
#include <numbers>

#include "attention/problem.h"

namespace qkv {
inline namespace v0 {

/// dsinks [H] (+)= it. delta and lse * log2(e) = high + low are [B, H, Tq].
template <class T>
void add_sink_gradient(const Problem<T>& p, const Accumulator<T>* delta, const Accumulator<T>* high, const Accumulator<T>* low,
                       const View<Accumulator<T>, 1>& dsinks, bool accumulate) {
  using Sum = Accumulator<T>;
  for (Index h = 0; h < p.num_heads; ++h) {
    const double sink2 = static_cast<double>(p.sinks(h)) * std::numbers::log2e;
    double sum = 0;
    for (Index b = 0; b < p.batch; ++b) {
      for (Index row = (b * p.num_heads + h) * p.q_len, end = row + p.q_len; row < end; ++row) {
        const double mass = std::exp2(sink2 - static_cast<double>(high[row]) - static_cast<double>(low[row]));
        sum -= mass == 0 ? 0 : mass * static_cast<double>(delta[row]);
      }
    }
    dsinks(h) = static_cast<Sum>(accumulate ? static_cast<double>(dsinks(h)) + sum : sum);
  }
}

}  // namespace v0
}  // namespace qkv
