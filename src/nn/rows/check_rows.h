// Checks of views for products and loops over rows.
#pragma once

#include "core/check.h"
#include "core/overlap.h"

namespace qkv::inline v0::nn {

/// check_rows("f", "x", x, "y", y): throws ShapeError unless the elements of a row are contiguous and rows do not
/// overlap. A null view passes, but not one with sizes.
template <class T, int Rank, class... More>
void check_rows(std::string_view function, std::string_view what, const View<T, Rank>& view, const More&... more) {
  check_given(function, {what, view});
  constexpr int kLast = Rank - 1;
  bool fits = view.count() == 0 || view.size(kLast) == 1 || view.stride(kLast) == 1;
  for (int axis = 0; axis < kLast && view.count() != 0; ++axis) {
    fits = fits && (view.size(axis) == 1 || view.stride(axis) >= view.size(kLast));
  }
  if constexpr (Rank > 2) fits = fits && !shows_twice(view);
  check<ShapeError>(fits, function, "the last axis of ", what,
      " must have stride 1 and its rows must not overlap: got sizes ", view, ", strides ",
      [&] { return shape_text(view.strides().data(), Rank); });
  if constexpr (sizeof...(more) > 0) check_rows(function, more...);
}

}  // namespace qkv::inline v0::nn
