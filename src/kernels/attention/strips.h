// A strip of queries, one per SIMD lane: which queries it holds, and steps on its panels [row][lane].
#pragma once

#include "kernels/attention/scores.h"
#include "kernels/attention/scratch.h"

namespace qkv {
namespace {

/// The queries of one strip.
struct StripRange {
  Index strip, i0, ni;
};
template <class T> inline StripRange strip_range(const ForwardTile<T>& t, Index strip) {
  const Index first = strip * strip_lanes<T>();
  return {strip, t.q_begin + first, smaller<Index>(strip_lanes<T>(), t.q_count - first)};
}

/// The first chunk at or after j0 with a key that one of the queries may attend; `end`: none.
template <class T> inline Index live_chunk(const ScoreParams<T>& s, Index q_begin, Index q_count, Index j0, Index end) {
  return live_step(s.mask, q_begin, q_count, j0, end, s.key_tile);
}

/// Lanes that may attend some key of the tile.
inline std::uint32_t attending_lanes(const LiveRange& live, const std::uint32_t* lane_mask) {
  if (!live.masked) return ~0u;
  std::uint32_t attended = 0;
  for (Index j = live.lo; j < live.hi; ++j) attended |= lane_mask[j];
  return attended;
}

/// scores[j] = 0 in dropped lanes.
template <class T> inline void drop_lanes(T* scores, int vectors, Index lo, Index hi, const std::uint32_t* kept) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index j = lo; j < hi; ++j) {
    for (int v = 0; v < vectors; ++v) {
      T* target = scores + j * strip_lanes<T>() + v * n;
      store<T>(target, select_bits<V>(kept[j] >> (v * n), load<T>(target), V{}));
    }
  }
}

/// out[d, lane] += sum over the keys of one range that the lane may attend: for tiles with NaN or infinity behind the
/// mask.
template <class T> inline void add_kept_lanes(const VectorRange& range, const T* v_rows, Index v_stride, Index width,
    const T* p, const std::uint32_t* lane_mask, T* out) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index d = 0; d < width; ++d) {
    for (int v = range.first; v < range.first + range.count; ++v) {
      V sum{};
      for (Index j = range.lo; j < range.hi; ++j) {
        const V next = fma(splat<T>(v_rows[j * v_stride + d]), load<T>(p + j * strip_lanes<T>() + v * n), sum);
        sum = select_bits<V>(lane_mask[j] >> (v * n), next, sum);
      }
      T* target = out + d * strip_lanes<T>() + v * n;
      store<T>(target, load<T>(target) + sum);
    }
  }
}

/// panel[d] *= rescale, unless that is 1 in every lane.
template <class T> inline void rescale_panel(T* panel, Index width, const T* rescale) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (int v = 0; v < kVectors; ++v) {
    const V factor = load<T>(rescale + v * n);
    if (bits_where<T>(factor != splat<T>(1)) == 0) continue;
    for (Index d = 0; d < width; ++d)
      store<T>(panel + d * strip_lanes<T>() + v * n, load<T>(panel + d * strip_lanes<T>() + v * n) * factor);
  }
}

template <class T> inline void zero_panel(T* panel, Index width) {
  for (Index e = 0; e < width * strip_lanes<T>(); ++e) panel[e] = 0;
}

}  // namespace
}  // namespace qkv
