// Products of a strip that holds few queries, one or the heads of a group: vectors lie along A instead of along the
// strip, so that no lane is idle. The same sums as gemm.h's, one chain of FMAs per element in ascending order, so that
// nothing but time depends on which of the two computes. B and C are panels of a strip.
#pragma once

#include "kernels/products/gemm.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

/// Lanes that are computed together.
template <class T> constexpr int kFewLanes = Simd<T>::kLanes < 4 ? Simd<T>::kLanes : 4;

/// C[m][lane] = sum_k A[m, k] * B[k][lane], A's rows in memory order: squares of A are transposed in registers, which
/// pays for lanes <= kFewLanes. Other lanes of the first vector become 0.
template <class T> [[gnu::noinline]] void few_lanes_of_rows(const Product<T>& p, Index rows) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, lanes = kFewLanes<T>, strip = strip_lanes<T>();
  for (Index m = 0; m < rows; m += n) {
    V sums[n]{};
    for (Index k0 = 0; k0 < p.depth; k0 += n) {
      V square[n];
      const T* const a = p.a + m * p.a_row + k0;
      load_square<T>(a, p.a_row, rows - m, p.depth - k0, square);
      for (Index r = 0; p.a_later != 0 && r < n; ++r) __builtin_prefetch(a + r * p.a_row + p.a_later, 0, 2);
      transpose_square<T>(square);
      const T* b = p.b + k0 * strip;
      const auto step = [&](int k) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int lane = 0; lane < lanes; ++lane) sums[lane] = fma(square[k], splat<T>(b[k * strip + lane]), sums[lane]);
      };
      if (p.depth - k0 >= n) {
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) step(k);
      } else {
        for (int k = 0; k < p.depth - k0; ++k) step(k);
      }
    }
    transpose_square<T>(sums);  // [row][lane]
    for (Index r = 0; r < smaller<Index>(n, rows - m); ++r) store<T>(p.c + (m + r) * p.c_row, sums[r]);
    if (p.ahead != nullptr) fetch_ahead(*p.ahead);
  }
}

/// C[m][lane] = sum_k A[m, k] * B[k][lane] for `lanes` lanes, added to C unless `sets`; A's columns in memory order
/// (a_row 1): vectors along m. Other lanes of the first vector are set to 0, or stay.
template <class T>
[[gnu::noinline]] void few_lanes_of_columns(const Product<T>& p, Index rows, Index lanes, bool sets) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, few = kFewLanes<T>, wide = 2, strip = strip_lanes<T>();
  for (Index m = 0; m < rows; m += wide * n) {
    V sums[wide][n];  // all are written below: GCC sets so much memory by a slow string instruction
    int width[wide];
    for (int v = 0; v < wide; ++v) width[v] = static_cast<int>(larger<Index>(0, smaller<Index>(n, rows - m - v * n)));
    for (Index first = 0; first < n; first += few) {
      V acc[wide][few]{};
      const Index depth = first < lanes ? p.depth : 0;
      const T *a = p.a + m, *b = p.b + first;
      const Index later = first == 0 ? p.a_later : 0;
      for (Index k = 0; k < depth; ++k, a += p.a_depth, b += strip) {
#pragma GCC unroll 2
        for (int v = 0; v < wide; ++v) {
          if (later != 0) __builtin_prefetch(a + v * n + later, 0, 2);
          const V values = load_tail<T>(a + v * n, width[v]);
#pragma GCC unroll 4
          for (int lane = 0; lane < few; ++lane) acc[v][lane] = fma(values, splat<T>(b[lane]), acc[v][lane]);
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < wide; ++v) {
#pragma GCC unroll 4
        for (int lane = 0; lane < few; ++lane) sums[v][first + lane] = acc[v][lane];
      }
    }
    for (int v = 0; v < wide; ++v) {
      transpose_square<T>(sums[v]);
      T* c = p.c + (m + v * n) * p.c_row;
      for (int r = 0; r < width[v]; ++r, c += p.c_row) store<T>(c, sets ? sums[v][r] : load<T>(c) + sums[v][r]);
    }
    if (p.ahead != nullptr) fetch_ahead(*p.ahead);
  }
}

}  // namespace
}  // namespace qkv
