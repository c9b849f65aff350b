// Rows to lanes and back: packs [rows][columns] as [columns][width] panels, by register transposes of lanes x lanes
// blocks.
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

template <class T> inline void transpose_square(typename Simd<T>::V* rows) {
  constexpr int n = Simd<T>::kLanes;
  using Lanes = std::make_integer_sequence<int, n>;
  if constexpr (n > 1) transpose_step<T, 1>(rows, Lanes{});
  if constexpr (n > 2) transpose_step<T, 2>(rows, Lanes{});
  if constexpr (n > 4) transpose_step<T, 4>(rows, Lanes{});
  if constexpr (n > 8) transpose_step<T, 8>(rows, Lanes{});
}

/// The n x n block at `source`, of which `rows` x `columns` exist; 0 elsewhere.
template <class T>
inline void load_square(const T* source, Index row_stride, Index rows, Index columns, typename Simd<T>::V* square) {
  constexpr int n = Simd<T>::kLanes;
  if (rows >= n && columns >= n) {
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) square[r] = load<T>(source + r * row_stride);
    return;
  }
  const int live_columns = static_cast<int>(smaller<Index>(n, columns));
  for (int r = 0; r < n; ++r) {
    square[r] = r < rows ? load_tail<T>(source + r * row_stride, live_columns) : typename Simd<T>::V{};
  }
}

/// panel[c * width + r] = factor * source[r * row_stride + c] for r < rows, c < columns; a last vector of rows is
/// filled up with 0. `observe` gets each vector that is stored.
template <class T, class Observe> inline void pack_transposed(const T* source, Index row_stride, Index rows,
    Index columns, T factor, T* panel, Index width, const Observe& observe) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index r0 = 0; r0 < rows; r0 += n) {
    for (Index c0 = 0; c0 < columns; c0 += n) {
      V square[n];
      load_square<T>(source + r0 * row_stride + c0, row_stride, rows - r0, columns - c0, square);
      transpose_square<T>(square);
      T* target = panel + c0 * width + r0;
      const auto put = [&](int c) {
        const V value = square[c] * factor;
        observe(value);
        store<T>(target + c * width, value);
      };
      if (columns - c0 >= n) {
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) put(c);
      } else {
        for (int c = 0; c < columns - c0; ++c) put(c);
      }
    }
  }
}

template <class T> inline void pack_transposed(
    const T* source, Index row_stride, Index rows, Index columns, T factor, T* panel, Index width) {
  pack_transposed<T>(source, row_stride, rows, columns, factor, panel, width, [](typename Simd<T>::V) {});
}

/// The same; returns whether the whole panel is finite.
template <class T> inline bool pack_transposed_finite(
    const T* source, Index row_stride, Index rows, Index columns, T factor, T* panel, Index width) {
  using V = typename Simd<T>::V;
  V mark{};
  pack_transposed<T>(
      source, row_stride, rows, columns, factor, panel, width, [&](V value) { mark = fma(value, V{}, mark); });
  return bits_where<T>(mark != mark) == 0;
}

/// target[r * row_stride + c] = lane_factor[r] * panel[c * width + r] for r < rows, c < columns; a zero is +0. Returns
/// the r, as bits, where something written was NaN or infinite; rows <= 32.
template <class T> inline std::uint32_t unpack_transposed(
    const T* panel, Index width, Index rows, Index columns, const T* lane_factor, T* target, Index row_stride) {
  constexpr int n = Simd<T>::kLanes;
  using V = typename Simd<T>::V;
  std::uint32_t nonfinite = 0;
  for (Index r0 = 0; r0 < rows; r0 += n) {
    V mark{};
    const V factor = load<T>(lane_factor + r0);
    const int live_rows = static_cast<int>(smaller<Index>(n, rows - r0));
    for (Index c0 = 0; c0 < columns; c0 += n) {
      V square[n];
      load_square<T>(panel + c0 * width + r0, width, columns - c0, n, square);
#pragma GCC unroll 16
      for (int c = 0; c < n; ++c) {
        square[c] = fma(square[c], factor, V{});
        mark = fma(square[c], V{}, mark);
      }
      transpose_square<T>(square);
      T* row = target + r0 * row_stride + c0;
      if (columns - c0 >= n) {
        for (int r = 0; r < live_rows; ++r) store<T>(row + r * row_stride, square[r]);
      } else {
        for (int r = 0; r < live_rows; ++r)
          store_tail<T>(row + r * row_stride, square[r], static_cast<int>(columns - c0));
      }
    }
    nonfinite |= (bits_where<T>(mark != mark) & ((1u << live_rows) - 1u)) << r0;
  }
  return nonfinite;
}

/// target[r * row_stride + c] += panel[c * width + r] for r < rows, c < columns; kSets: to 0.
template <class T, bool kSets = false>
inline void add_transposed(const T* panel, Index width, Index rows, Index columns, T* target, Index row_stride) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index r0 = 0; r0 < rows; r0 += n) {
    const int live_rows = static_cast<int>(smaller<Index>(n, rows - r0));
    for (Index c0 = 0; c0 < columns; c0 += n) {
      const int live_columns = static_cast<int>(smaller<Index>(n, columns - c0));
      V square[n];
      load_square<T>(panel + c0 * width + r0, width, columns - c0, n, square);
      transpose_square<T>(square);
      T* const block = target + r0 * row_stride + c0;
      if (live_rows == n && live_columns == n) {
#pragma GCC unroll 16
        for (int r = 0; r < n; ++r) {
          T* const row = block + r * row_stride;
          store<T>(row, (kSets ? V{} : load<T>(row)) + square[r]);
        }
        continue;
      }
      for (int r = 0; r < live_rows; ++r) {
        T* const row = block + r * row_stride;
        store_tail<T>(row, (kSets ? V{} : load_tail<T>(row, live_columns)) + square[r], live_columns);
      }
    }
  }
}

}  // namespace
}  // namespace qkv
