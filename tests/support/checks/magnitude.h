// A: each result with every term made positive, the scale on which rounding errors are judged.
//   out: w|v|   ds: w (|dout||v| + |dout||out| + |dlse|)   dv: w^T |dout|
//   dq: |scale| A_ds |k|   dk: |scale| A_ds^T |q|
//   dbias: sum A_ds, as the other sums over ds
//   dsinks: sum w_sink (|dout||out| + |dlse|), the sink a key of score S = |sink|
// Here w stands for w (1 + (S[i,j] + sum_j w S) / 4), S = (1 + sqrt(D) / 4) |scale| |q||k| + |bias|: a score is a sum
// of D terms too, and rounding it by eps S changes exp(score) by that share. The naive form does not always show it:
// few keys live in a saturated row, and a weight of exactly 1 hides any error of its score. Not: an error bound by
// itself (expect.h). A bound by max|expected| would fail correct code: with one live key the exact ds is 0.
#pragma once

#include <cmath>

#include "reference/attention.h"
#include "support/problem.h"

namespace qkv::test {

struct Magnitude {
  Tensor<double> out, lse, weights;  // [B, H, Tq, Dv], [B, H, Tq], [B, H, Tq, Tk]
  Tensor<double> dq, dk, dv, dbias;  // as the gradients; dbias [B, H, Tq, Tk]
  Tensor<double> dsinks{}, dposition{};
};

/// sum_n |x[b,h,i,n] y[b,g,j,n]|; 0 where one is null.
template <class C>
double absolute_dot(const View<const C, 4>& x, Index b, Index h, Index i, const View<const C, 4>& y, Index g, Index j) {
  if (x.is_null() || y.is_null()) return 0;
  double sum = 0;
  for (Index n = 0; n < x.size(3); ++n) sum += static_cast<double>(std::abs(x(b, h, i, n) * y(b, g, j, n)));
  return sum;
}

/// The bias of a pair, with broadcast axes; 0 where it is null.
template <class C> double bias_of(const View<const C, 4>& bias, Index b, Index h, Index i, Index j) {
  if (bias.is_null()) return 0;
  return static_cast<double>(
      bias(bias.size(0) > 1 ? b : 0, bias.size(1) > 1 ? h : 0, bias.size(2) > 1 ? i : 0, bias.size(3) > 1 ? j : 0));
}

/// Without `gradients` those are 0.
template <class C>
Magnitude magnitude_of(const ReferenceInput<C>& input, const reference::Forward<C>& exact, bool gradients = true);

}  // namespace qkv::test
