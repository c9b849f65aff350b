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

#if QKV_VECTOR_BYTES == 64 && defined(__AVX512F__)
// Of vectors a and b within each 16 bytes, pieces of kPiece lanes in turn: of their first halves, or of the second.
template <class T, int kPiece, int kHalf, int... kLane> inline typename Simd<T>::V zip_pieces(
    typename Simd<T>::V a, typename Simd<T>::V b, std::integer_sequence<int, kLane...>) {
  constexpr int n = Simd<T>::kLanes, unit = 16 / static_cast<int>(sizeof(T));
  return __builtin_shufflevector(a, b,
      (kLane / unit * unit + kHalf * unit / 2 + kLane % unit / (2 * kPiece) * kPiece + kLane % kPiece +
          kLane / kPiece % 2 * n)...);
}
// 16 bytes of every 32 of a, then of b: the first ones, or the second.
template <class T, int kHalf, int... kLane> inline typename Simd<T>::V every_second(
    typename Simd<T>::V a, typename Simd<T>::V b, std::integer_sequence<int, kLane...>) {
  constexpr int n = Simd<T>::kLanes, unit = 16 / static_cast<int>(sizeof(T));
  return __builtin_shufflevector(
      a, b, (kLane / unit % 2 * 2 * unit + kHalf * unit + kLane % unit + kLane / (n / 2) * n)...);
}

// Squares within 16 bytes, then those 16 bytes: no shuffle needs a register of indices, as Eklundh's do here.
template <class T> inline void transpose_square(typename Simd<T>::V* rows) {
  constexpr int n = Simd<T>::kLanes, unit = 16 / static_cast<int>(sizeof(T));
  using Lanes = std::make_integer_sequence<int, n>;
  typename Simd<T>::V x[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; i += 2) {
    x[i] = zip_pieces<T, 1, 0>(rows[i], rows[i + 1], Lanes{});
    x[i + 1] = zip_pieces<T, 1, 1>(rows[i], rows[i + 1], Lanes{});
  }
  if constexpr (unit == 4) {
#pragma GCC unroll 16
    for (int i = 0; i < n; i += 4) {
      const auto a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
      x[i] = zip_pieces<T, 2, 0>(a, c, Lanes{});
      x[i + 1] = zip_pieces<T, 2, 1>(a, c, Lanes{});
      x[i + 2] = zip_pieces<T, 2, 0>(b, d, Lanes{});
      x[i + 3] = zip_pieces<T, 2, 1>(b, d, Lanes{});
    }
  }
  // x[g * unit + c]: of rows g * unit on, columns c, c + unit, ...
#pragma GCC unroll 16
  for (int c = 0; c < unit; ++c) {
    const auto *const low = x + c, *const high = x + 2 * unit + c;
    const auto even = every_second<T, 0>(low[0], low[unit], Lanes{});
    const auto even_high = every_second<T, 0>(high[0], high[unit], Lanes{});
    const auto odd = every_second<T, 1>(low[0], low[unit], Lanes{});
    const auto odd_high = every_second<T, 1>(high[0], high[unit], Lanes{});
    rows[c] = every_second<T, 0>(even, even_high, Lanes{});
    rows[c + unit] = every_second<T, 0>(odd, odd_high, Lanes{});
    rows[c + 2 * unit] = every_second<T, 1>(even, even_high, Lanes{});
    rows[c + 3 * unit] = every_second<T, 1>(odd, odd_high, Lanes{});
  }
}
#else
template <class T> inline void transpose_square(typename Simd<T>::V* rows) {
  constexpr int n = Simd<T>::kLanes;
  using Lanes = std::make_integer_sequence<int, n>;
  if constexpr (n > 1) transpose_step<T, 1>(rows, Lanes{});
  if constexpr (n > 2) transpose_step<T, 2>(rows, Lanes{});
  if constexpr (n > 4) transpose_step<T, 4>(rows, Lanes{});
  if constexpr (n > 8) transpose_step<T, 8>(rows, Lanes{});
}
#endif

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
