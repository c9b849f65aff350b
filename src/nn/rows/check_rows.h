// What products and loops over rows require of a view. Not: sizes (each function checks its own).
#pragma once

#include "core/check.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// Throws ShapeError unless the elements of a row are contiguous and rows do not overlap. A null view passes.
template <class T, int Rank>
void check_rows(std::string_view function, std::string_view what, const View<T, Rank>& view) {
  constexpr int kLast = Rank - 1;
  if (view.count() == 0) return;
  bool fits = view.size(kLast) == 1 || view.stride(kLast) == 1;
  for (int axis = 0; axis < kLast; ++axis) fits = fits && (view.size(axis) == 1 || view.stride(axis) >= view.size(kLast));
  check<ShapeError>(fits, function, "the last axis of ", what, " must have stride 1 and its rows must not overlap: got sizes ",
                    view, ", strides ", [&] { return shape_text(view.strides().data(), Rank); });
}

}  // namespace qkv::inline v0::nn
