// What the parts of `qkv forms` share: how a row is timed and judged, and the q, k, v of attention without projections.
// Not: which rows there are (forms.cc, linear.cc, sparse.cc).
#pragma once

#include <functional>

#include "forms/forms.h"
#include "forms/truth.h"

namespace qkv::cli {

/// Median of at least 3 and at most 25 calls, about 60 ms in all.
double median_seconds(const std::function<void()>& call);

/// Heads of projected x [B*T, 3E] in the order q, k, v, for forms of attention alone; and the softmax attention of them without
/// a mask in f64 [B, H, T, D], from which the distance of other formulas is measured.
struct AloneInput {
  const FormsSizes& sizes;
  const Tensor<float>& projected;  // [B*T, 3E]
  const Tensor<double>& softmax;

  template <class N>
  Tensor<N> heads(int part) const {  // [B, H, T, D], contiguous
    const View<const float, 4> from = part_as_heads(projected, sizes.batch, sizes.num_heads, part);
    Tensor<N> to({from.size(0), from.size(1), from.size(2), from.size(3)});
    N* place = to.data();
    for (Index b = 0; b < from.size(0); ++b) {
      for (Index h = 0; h < from.size(1); ++h) {
        for (Index i = 0; i < from.size(2); ++i) {
          for (Index n = 0; n < from.size(3); ++n) *place++ = static_cast<N>(from(b, h, i, n));
        }
      }
    }
    return to;
  }
  double tokens() const { return static_cast<double>(sizes.batch * sizes.length); }
  double embed() const { return static_cast<double>(sizes.embed_dim); }
};

/// Fills what a row of attention alone has from a run of it: error, distance from softmax, time. `causal` rows are not held
/// against softmax without a mask.
template <class Wide>
void measure_row(Form& row, const Tensor<float>& out, const Truth<Wide>& truth, const AloneInput* unmasked,
                 const std::function<void()>& forward) {
  const Distance error = distance(out, truth.exact, truth.bounds);
  row.error = error.largest;
  row.error_over_bound = error.over_bound;
  row.seconds = median_seconds(forward);
  if (unmasked != nullptr) row.from_softmax = distance(out, unmasked->softmax, truth.bounds).largest;
}

/// The longest sequence for which q, k, v, out and what the form needs besides them fit into `memory` bytes: the larger root of
/// square n^2 + each n + fixed = memory.
double longest_length(double memory, double square, double each, double fixed);

void add_linear_forms(FormsReport& report, const AloneInput& input, Context& context);
void add_sparse_forms(FormsReport& report, const AloneInput& input, Context& context);

}  // namespace qkv::cli
