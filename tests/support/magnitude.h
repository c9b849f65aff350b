// A: each result with every term made positive, the scale on which rounding errors are judged.
//   out: w|v|   ds: w (|dout||v| + |dout||out| + |dlse|)   dq: |scale| A_ds |k|   dk: |scale| A_ds^T |q|   dv: w^T |dout|
//   dbias: sum A_ds
// Not: an error bound by itself (expect.h). A bound by max|expected| would fail correct code: with one live key the exact ds is
// 0.
#pragma once

#include <cmath>

#include "reference/attention.h"

namespace qkv::test {

struct Magnitude {
  Tensor<double> out, lse, weights;  // [B, H, Tq, Dv], [B, H, Tq], [B, H, Tq, Tk]
  Tensor<double> dq, dk, dv, dbias;  // as the gradients; dbias [B, H, Tq, Tk]
};

namespace magnitude_detail {

template <class C>
double absolute_dot(const View<const C, 4>& x, Index b, Index h, Index i, const View<const C, 4>& y, Index g, Index j) {
  double sum = 0;
  for (Index n = 0; n < x.size(3); ++n) sum += static_cast<double>(std::abs(x(b, h, i, n) * y(b, g, j, n)));
  return sum;
}

}  // namespace magnitude_detail

/// `input` is a ReferenceInput<C>, `exact` what the reference made of it.
template <class Input, class C>
Magnitude magnitude_of(const Input& input, const reference::Forward<C>& exact) {
  using magnitude_detail::absolute_dot;
  const View<const C, 4> q = input.q, k = input.k, v = input.v, dout = input.dout, out = exact.out, weights = exact.weights;
  const View<const C, 4>& bias = input.options.bias;
  const View<const C, 3> dlse = input.dlse, lse = exact.lse;
  const auto sizes = [](auto&&... n) { return std::vector<Index>{n...}; };
  const Index batch = q.size(0), num_heads = q.size(1), q_len = q.size(2), kv_len = k.size(2);
  Magnitude a{Tensor<double>(exact.out.sizes()),
              Tensor<double>(exact.lse.sizes()),
              Tensor<double>(exact.weights.sizes()),
              Tensor<double>(input.q.sizes()),
              Tensor<double>(input.k.sizes()),
              Tensor<double>(input.v.sizes()),
              Tensor<double>(sizes(batch, num_heads, q_len, kv_len))};
  const View<double, 4> a_out = a.out, a_weights = a.weights, a_dq = a.dq, a_dk = a.dk, a_dv = a.dv, a_ds = a.dbias;
  const View<double, 3> a_lse = a.lse;
  const double scale = std::abs(input.options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))));
  const auto& options = input.options;

  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      const Index g = h / (num_heads / k.size(1));
      for (Index i = 0; i < q_len; ++i) {
        const bool empty = lse(b, h, i) == -static_cast<C>(HUGE_VAL);
        const double dout_out = empty ? 0 : absolute_dot(dout, b, h, i, out, h, i);
        const double dlse_row = std::abs(static_cast<double>(dlse(b, h, i)));
        double score_mean = 0;  // sum_j w S, S = |scale| |q||k| + |bias|
        for (Index j = 0; j < kv_len; ++j) {
          const double w = static_cast<double>(weights(b, h, i, j));
          const double factor = options.factor ? options.factor(b, h, i, j) : 1;
          const bool kept = w != 0;  // a pair whose weight is 0 contributes 0 to each sum; NaN counts as kept
          if (!kept) continue;
          for (Index n = 0; n < v.size(3); ++n) {
            a_out(b, h, i, n) += factor * w * static_cast<double>(std::abs(v(b, g, j, n)));
            a_dv(b, g, j, n) += factor * w * static_cast<double>(std::abs(dout(b, h, i, n)));
          }
          if (empty) continue;
          const double added = bias.is_null()
                                   ? 0
                                   : std::abs(static_cast<double>(bias(bias.size(0) > 1 ? b : 0, bias.size(1) > 1 ? h : 0,
                                                                       bias.size(2) > 1 ? i : 0, bias.size(3) > 1 ? j : 0)));
          const double score = scale * absolute_dot(q, b, h, i, k, g, j) + added;
          score_mean += w * score;
          a_weights(b, h, i, j) = w * (1 + score);
          const double ds = w * (factor * absolute_dot(dout, b, h, i, v, g, j) + dout_out + dlse_row);
          a_ds(b, h, i, j) = ds;
          for (Index n = 0; n < q.size(3); ++n) {
            a_dq(b, h, i, n) += scale * ds * static_cast<double>(std::abs(k(b, g, j, n)));
            a_dk(b, g, j, n) += scale * ds * static_cast<double>(std::abs(q(b, h, i, n)));
          }
        }
        a_lse(b, h, i) = score_mean + std::abs(static_cast<double>(lse(b, h, i)));
        for (Index j = 0; j < kv_len; ++j) a_weights(b, h, i, j) += static_cast<double>(weights(b, h, i, j)) * score_mean;
      }
    }
  }
  return a;
}

}  // namespace qkv::test
