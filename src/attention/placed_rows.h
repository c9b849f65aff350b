// Rows of a larger problem (Placement) that begin or end inside a strip: which keys a strip takes its first shift from depends on
// the masks of all its lanes, so such rows are computed with their strip's other lanes, as rows of zeros. Not: rows that are whole
// strips, which are computed where they lie (Problem::whole_rows).
#pragma once

#include <algorithm>

#include "attention/forward/decode.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// The rows of whole strips that hold those of a call, counted in the whole problem.
struct StripRows {
  Index before, count;  // rows added before the call's first; rows with what is added
  bool added;           // any
};

/// Rows are added up to multiples of `step` of the whole problem.
template <class T>
StripRows strip_rows(const Problem<T>& p, Index step) {
  if (p.q_len == 0) return {0, 0, false};
  const Index begin = p.first_query / step * step;
  const Index end = std::min((p.first_query + p.q_len + step - 1) / step * step, p.queries);
  return {p.first_query - begin, end - begin, end - begin != p.q_len};
}

/// Forward; decode takes all rows of a problem at once.
template <class T>
StripRows rows_of_forward(const Problem<T>& p, bool wants_out) {
  return strip_rows(p, wants_out && decode_suits(p) ? p.queries : p.kernels->strip);
}
/// Backward. With a negative scale a row of dq without keys is +0 or -0, by whether its tile meets any. (With a scale of 0 all of
/// dq is zero, of either sign.)
template <class T>
StripRows rows_of_backward(const Problem<T>& p) {
  return strip_rows(p, p.scale >= 0 ? p.kernels->strip : p.query_tile);
}

/// The call's options with the place of these rows.
template <class T>
AttentionOptions options_of(const AttentionOptions& options, const Problem<T>& p, const StripRows& rows) {
  AttentionOptions wide = options;
  wide.place = {p.first_query - rows.before, p.queries, p.first_head, p.heads};
  return wide;
}

/// to = from, of the same sizes.
template <class E, class Number>
void copy_rows(const View<E, 4>& from, const View<Number, 4>& to) {
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index h = 0; h < from.size(1); ++h) {
      for (Index i = 0; i < from.size(2); ++i) {
        for (Index d = 0; d < from.size(3); ++d) to(b, h, i, d) = from(b, h, i, d);
      }
    }
  }
}
template <class E, class Number>
void copy_rows(const View<E, 3>& from, const View<Number, 3>& to) {
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index h = 0; h < from.size(1); ++h) {
      for (Index i = 0; i < from.size(2); ++i) to(b, h, i) = from(b, h, i);
    }
  }
}

/// A copy of x [B, H, Tq, ..] for the rows of whole strips, with `fill` in those that are not the call's. Null stays without
/// data.
template <class E, int kRank>
Tensor<std::remove_const_t<E>> with_strip_rows(const View<E, kRank>& x, const StripRows& rows,
                                               std::remove_const_t<E> fill = std::remove_const_t<E>{}) {
  using Number = std::remove_const_t<E>;
  if (x.data() == nullptr) return {};
  auto sizes = x.sizes();
  sizes[2] = rows.count;
  Tensor<Number> copy(std::vector<Index>(sizes.begin(), sizes.end()));
  std::ranges::fill(copy.span(), fill);
  copy_rows(x, View<Number, kRank>(copy).sliced(2, rows.before, rows.before + x.size(2)));
  return copy;
}

/// The call's rows of a copy into x; nothing where x is null.
template <class E, int kRank>
void take_rows_back(const Tensor<E>& copy, const StripRows& rows, const View<E, kRank>& x) {
  if (x.data() == nullptr) return;
  copy_rows(View<const E, kRank>(copy).sliced(2, rows.before, rows.before + x.size(2)), x);
}

}  // namespace qkv::inline v0
