// Shared by the parts of `qkv forms`: how a row is timed and judged, and the q, k, v of attention without projections.
#pragma once

#include <cstring>
#include <functional>

#include "forms/forms.h"
#include "forms/truth.h"

namespace qkv::cli {

/// Median of at least 3 and at most 25 calls, about 60 ms in all.
double median_seconds(const std::function<void()>& call);

/// Heads of projected x [B*T, 3E] in the order q, k, v, for forms of attention alone; and the softmax attention of them
/// without a mask in f64 [B, H, T, D], from which the distance of other formulas is measured.
struct AloneInput {
  const FormsSizes& sizes;
  const Tensor<float>& projected;  // [B*T, 3E]
  const Tensor<double>& softmax;

  template <class N> Tensor<N> heads(int part) const {  // [B, H, T, D], contiguous
    return converted<N>(part_as_heads(projected, sizes.batch, sizes.num_heads, part));
  }
  double tokens() const { return static_cast<double>(sizes.batch * sizes.length); }
  double embed() const { return static_cast<double>(sizes.embed_dim); }
};

/// Fills what a row has from runs of it: error, distance from softmax, time. `causal` rows are not held against softmax
/// without a mask.
template <class T, class Wide> void measure_row(Form& row, const Tensor<T>& out, const Truth<Wide>& truth,
    const AloneInput* unmasked, const std::function<void()>& forward) {
  row.seconds = median_seconds(forward);  // which may fill `out`
  const Distance error = distance(out, truth.exact, truth.bounds);
  row.error = error.largest;
  row.error_over_bound = error.over_bound;
  if (unmasked != nullptr) row.from_softmax = distance(out, unmasked->softmax, truth.bounds).largest;
}

/// Whether two outputs are equal.
template <class T, class Wide> EqualForms compare(std::string a, const Tensor<T>& of_a, std::string b,
    const Tensor<T>& of_b, const Truth<Wide>& truth, std::string note = "") {
  const Distance apart = distance(of_a, of_b, truth.bounds);
  const bool bits = std::memcmp(of_a.data(), of_b.data(), static_cast<std::size_t>(of_a.count()) * sizeof(T)) == 0;
  return {std::move(a), std::move(b), std::move(note), apart.largest, apart.over_bound, bits};
}

/// The longest sequence for which q, k, v, out and what the form needs besides them fit into `memory` bytes: the larger
/// root of square n^2 + each n + fixed = memory.
double longest_length(double memory, double square, double each, double fixed);

void add_linear_forms(FormsReport& report, const AloneInput& input, Context& context);

}  // namespace qkv::cli
