// A: each result with every term made positive, the scale on which rounding errors are judged.
//   out: w|v|   ds: w (|dout||v| + |dout||out| + |dlse|)   dq: |scale| A_ds |k|   dk: |scale| A_ds^T |q|   dv: w^T
//   |dout| dbias: sum A_ds, as the other sums over ds    dsinks: sum w_sink (|dout||out| + |dlse|), the sink a key of
//   score S = |sink|
// Here w stands for w (1 + (S[i,j] + sum_j w S) / 4), S = (1 + sqrt(D) / 4) |scale| |q||k| + |bias|: a score is a sum
// of D terms too, and rounding it by eps S changes exp(score) by that share. The naive form does not always show it:
// few keys live in a saturated row, and a weight of exactly 1 hides any error of its score. Not: an error bound by
// itself (expect.h). A bound by max|expected| would fail correct code: with one live key the exact ds is 0.
#pragma once

#include "reference/attention.h"
#include "support/problem.h"

namespace qkv::test {

struct Magnitude {
  Tensor<double> out, lse, weights;  // [B, H, Tq, Dv], [B, H, Tq], [B, H, Tq, Tk]
  Tensor<double> dq, dk, dv, dbias;  // as the gradients; dbias [B, H, Tq, Tk]
  Tensor<double> dsinks{}, dposition{};
};

/// Without `gradients` those are 0.
template <class C>
Magnitude magnitude_of(const ReferenceInput<C>& input, const reference::Forward<C>& exact, bool gradients = true);

}  // namespace qkv::test
