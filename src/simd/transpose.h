// Rows to lanes and back: packs [rows][columns] as [columns][width] panels, by register transposes of lanes x lanes blocks.
#pragma once

#include <utility>

#include "simd/vec.h"

namespace qkv {
namespace {

// One butterfly of Eklundh's transpose: swaps the off-diagonal halves of each 2*step square.
template <class T, int kStep, int... kLane>
inline void transpose_step(typename Simd<T>::V* rows, std::integer_sequence<int, kLane...>) {
  constexpr int n = Simd<T>::kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if ((i & kStep) != 0) continue;
    const auto a = rows[i], b = rows[i + kStep];
    rows[i] = __builtin_shufflevector(a, b, ((kLane & kStep) ? n + kLane - kStep : kLane)...);
    rows[i + kStep] = __builtin_shufflevector(a, b, ((kLane & kStep) ? n + kLane : kLane + kStep)...);
  }
}

template <class T>
inline void transpose_square(typename Simd<T>::V* rows) {
  constexpr int n = Simd<T>::kLanes;
  using Lanes = std::make_integer_sequence<int, n>;
  if constexpr (n > 1) transpose_step<T, 1>(rows, Lanes{});
  if constexpr (n > 2) transpose_step<T, 2>(rows, Lanes{});
  if constexpr (n > 4) transpose_step<T, 4>(rows, Lanes{});
  if constexpr (n > 8) transpose_step<T, 8>(rows, Lanes{});
}

/// panel[c * width + r] = factor * source[r * row_stride + c] for r < rows, c < columns; a last vector of rows is filled up
/// with 0.
template <class T>
inline void pack_transposed(const T* source, Index row_stride, Index rows, Index columns, T factor, T* panel, Index width) {
  constexpr int n = Simd<T>::kLanes;
  using V = typename Simd<T>::V;
  for (Index r0 = 0; r0 < rows; r0 += n) {
    for (Index c0 = 0; c0 < columns; c0 += n) {
      const int live_columns = static_cast<int>(smaller<Index>(n, columns - c0));
      V square[n];
      for (int r = 0; r < n; ++r) {
        const T* row = source + (r0 + r) * row_stride + c0;
        if (r0 + r >= rows) {
          square[r] = V{};
        } else {
          square[r] = live_columns == n ? load<T>(row) : load_tail<T>(row, live_columns);
        }
      }
      transpose_square<T>(square);
      for (int c = 0; c < live_columns; ++c) store<T>(panel + (c0 + c) * width + r0, square[c] * factor);
    }
  }
}

/// target[r * row_stride + c] (+)= panel[c * width + r] for r < rows, c < columns.
template <class T, bool kAdd = false>
inline void unpack_transposed(const T* panel, Index width, Index rows, Index columns, T* target, Index row_stride) {
  constexpr int n = Simd<T>::kLanes;
  using V = typename Simd<T>::V;
  for (Index c0 = 0; c0 < columns; c0 += n) {
    const int live_columns = static_cast<int>(smaller<Index>(n, columns - c0));
    for (Index r0 = 0; r0 < rows; r0 += n) {
      V square[n];
      for (int c = 0; c < n; ++c) square[c] = c < live_columns ? load<T>(panel + (c0 + c) * width + r0) : V{};
      transpose_square<T>(square);
      const int live_rows = static_cast<int>(smaller<Index>(n, rows - r0));
      for (int r = 0; r < live_rows; ++r) {
        T* row = target + (r0 + r) * row_stride + c0;
        if constexpr (kAdd) square[r] += live_columns == n ? load<T>(row) : load_tail<T>(row, live_columns);
        if (live_columns == n) {
          store<T>(row, square[r]);
        } else {
          store_tail<T>(row, square[r], live_columns);
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv
