// Dot products of decode.h for many queries: queries in the lanes, elements of K broadcast, no horizontal sums. The
// scores of n keys and n queries are transposed back in registers.
#pragma once

#include "kernels/decode/blocks.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

/// Below this many lanes a horizontal sum is cheap.
constexpr int kLaneLimit = 8;

/// Whether `rows` queries fill the lanes well enough; for fewer, dot products along D are as fast. Rows that are
/// widened go along D as well.
template <class T> constexpr bool takes_lanes(Index rows) {
  return std::is_same_v<T, SumOf<T>> && Simd<SumOf<T>>::kLanes >= kLaneLimit && rows > 8;
}

/// scores[r][p] = sum_d panel[d][r] * keys[p][d] for n keys and n queries, d in ascending order. Prefetches the rows
/// `soon`, a cache line at a time; soon may be null.
template <class T> inline void lane_block(const T* panel, Index panel_row, const T* const* keys, Index head_dim,
    const T* const* soon, bool into_l2, T* scores, Index rows) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, steps = 8, together = 4;
  V acc[n];
#pragma GCC unroll 16
  for (int p = 0; p < n; ++p) acc[p] = V{};
  // Per 64 bytes of each of the n rows, as many bytes of the next n rows are prefetched, row by row.
  constexpr Index line = 64 / static_cast<Index>(sizeof(T)), count = n * steps / line;
  const Index rows_to_fetch = soon == nullptr ? 0 : n;
  Index row = 0, at = 0;
  Index d = 0;
  for (; d + steps <= head_dim; d += steps) {
    V query[steps];
#pragma GCC unroll 8
    for (int u = 0; u < steps; ++u) query[u] = load<T>(panel + (d + u) * panel_row);
    for (Index p = 0; p < count && row < rows_to_fetch; ++p) {
      fetch<kShared>(soon[row] + at, into_l2);
      at += line;
      if (at < head_dim) continue;
      at = 0;
      ++row;
    }
#pragma GCC unroll 4
    for (int p0 = 0; p0 < n; p0 += together) {
      const T* key[together];
#pragma GCC unroll 4
      for (int p = 0; p < together; ++p) key[p] = keys[p0 + p] + d;
#pragma GCC unroll 8
      for (int u = 0; u < steps; ++u) {
#pragma GCC unroll 4
        for (int p = 0; p < together; ++p) acc[p0 + p] = fma(splat<T>(key[p][u]), query[u], acc[p0 + p]);
      }
    }
  }
  for (; d < head_dim; ++d) {
    const V query = load<T>(panel + d * panel_row);
#pragma GCC unroll 16
    for (int p = 0; p < n; ++p) acc[p] = fma(splat<T>(keys[p][d]), query, acc[p]);
  }
  transpose_square<T>(acc);
  if (rows >= n) {
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) store<T>(scores + r * kChunkLimit, acc[r]);
  } else {
    for (int r = 0; r < rows; ++r) store<T>(scores + r * kChunkLimit, acc[r]);
  }
}

/// Scores of all queries of a group and the live keys of a chunk.
template <class T, class Chunk>
inline void lane_dots(const T* panel, Index rows, const Chunk& k, Index head_dim, bool into_l2, T* scores) {
  constexpr Index n = Simd<T>::kLanes, step = n / kRuns;
  const Index panel_row = (rows + n - 1) / n * n;
  for (Index g = 0; g < k.run; g += step) {
    const T *keys[n], *soon[n];
    bool any = false;
    for (Index i = 0; i < kRuns; ++i) any |= i * k.run + g < k.hi && i * k.run + g + step > k.lo;
    if (!any) continue;
    for (Index p = 0; p < n; ++p) {
      const Index row = g + p / kRuns, key = p % kRuns * k.run + row;
      const Index live = larger(k.lo, smaller(key, k.hi - 1));
      keys[p] = key == live ? k.row(row)[p % kRuns] : k.key(live);  // a live key instead of a masked one
      soon[p] = k.soon(row)[p % kRuns];
    }
    for (Index r = 0; r < rows; r += n) {
      lane_block<T>(panel + r, panel_row, keys, head_dim, r == 0 ? soon : nullptr, into_l2,
          scores + r * kChunkLimit + kRuns * g, rows - r);
    }
  }
}

}  // namespace
}  // namespace qkv
