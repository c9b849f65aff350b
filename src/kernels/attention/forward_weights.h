// The weights of a forward tile as a matrix: from exponentials that forward kept, or by a second pass over the keys.
#pragma once

#include <numbers>

#include "kernels/attention/strips.h"

namespace qkv {
namespace {

/// Completes one chunk's exponentials: 0 outside its ranges, and the shift that they were computed with.
template <class T>
inline void keep_chunk(const ForwardTile<T>& t, const VectorRanges& ranges, Index j0, Index nj, const T* row_max) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (int v = 0; v < kVectors; ++v) {
    T* column = t.exponentials + j0 * strip_lanes<T>() + v * n;
    Index done = 0;
    const auto zero_up_to = [&](Index end) {
      for (; done < end; ++done) store<T>(column + done * strip_lanes<T>(), V{});
    };
    for (int i = 0; i < ranges.count; ++i) {
      const VectorRange& range = ranges.range[i];
      if (v < range.first || v >= range.first + range.count) continue;
      zero_up_to(range.lo);
      done = range.hi;
    }
    zero_up_to(nj);
    store<T>(t.chunk_shifts + j0 / t.scores.key_tile * strip_lanes<T>() + v * n, load<T>(row_max + v * n));
  }
}

/// weights[i, j] = exp2(s2 - max) / sum, 0 where not kept (in a row of NaN too), with the scores computed again; or the
/// scores, s2 ln 2, -inf where not kept.
template <class T, class Policy> inline void write_weights(
    const ForwardTile<T>& t, const ForwardScratch<T>& w, const Policy& rows, const StripRange& r, Index j0, Index nj) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScoreParams<T>& s = t.scores;
  const Index first = r.strip * strip_lanes<T>();
  const int vectors = live_vectors<T>(r.ni);
  LiveRange live = rows.score(t, w, r, j0, nj, w.scores).live;
  if (!live.any) live = {true, false, 0, 0};
  const bool applied = t.kind == Weights::kApplied && s.dropout.threshold != 0, scores = t.kind == Weights::kScores;
  const V hidden = scores ? splat<T>(-kInf<T>) : V{}, unit = splat<T>(std::numbers::ln2_v<T>);
  const V factor = splat<T>(applied ? kept_factor<T>(s.dropout) : T{1});
  V shift[kVectors], inverse[kVectors];
  for (int v = 0; v < vectors; ++v) {
    shift[v] = shift_of<T>(load<T>(w.row_max + first + v * n));
    inverse[v] = load<T>(w.row_sum + first + v * n);
    store<T>(w.rescale + v * n, factor);
  }
  for (Index j = 0; j < nj; ++j) {
    const bool lives = j >= live.lo && j < live.hi;
    for (int v = 0; v < vectors; ++v) {
      T* target = w.scores + j * strip_lanes<T>() + v * n;
      const V score = load<T>(target);
      V weight = !lives ? hidden : scores ? score * unit : exp2<T>(score - shift[v]) * inverse[v];
      if (lives && live.masked) weight = select_bits<V>(w.lane_mask[j] >> (v * n), weight, hidden);
      store<T>(target, weight);
    }
  }
  if (applied && live.lo < live.hi) {
    dropout_mask<T>(s.dropout, r.i0, r.ni, j0, live.lo, live.hi, w.kept);
    drop_lanes(w.scores, vectors, live.lo, live.hi, w.kept);
  }
  unpack_transposed<T>(w.scores, strip_lanes<T>(), r.ni, nj, w.rescale,
      t.weights + (r.i0 - t.q_begin) * t.weights_row_stride + j0, t.weights_row_stride);
}

/// Writes 0 over the weights of pairs that are not kept in the rows `lanes`, whose sum is NaN, which 0 times it is too.
template <class T, class Policy> [[gnu::noinline]] void hide_weights(const ForwardTile<T>& t,
    const ForwardScratch<T>& w, Policy& rows, const StripRange& r, Index j0, Index nj, std::uint32_t lanes) {
  rows.read_keys(t, j0, nj);
  const LiveRange live = rows.score(t, w, r, j0, nj, w.scores).live;
  for (Index j = 0; j < nj; ++j) {
    const bool lives = live.any && j >= live.lo && j < live.hi;
    const std::uint32_t hidden = lanes & ~(!lives ? 0 : live.masked ? w.lane_mask[j] : lanes);
    for (Index i = 0; i < r.ni; ++i) {
      if ((hidden >> i & 1) != 0) t.weights[(r.i0 - t.q_begin + i) * t.weights_row_stride + j0 + j] = 0;
    }
  }
}

/// weights[i, j] from the kept exponentials, after finish_strip; 0 outside [begin, end).
template <class T, class Policy> inline void write_kept_weights(
    const ForwardTile<T>& t, const ForwardScratch<T>& w, Policy& rows, const StripRange& r, Index begin, Index end) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScoreParams<T>& s = t.scores;
  const Index first = r.strip * strip_lanes<T>();
  std::uint32_t nans = 0;
  for (int v = 0; v < live_vectors<T>(r.ni); ++v) {
    const V inverse = load<T>(w.row_sum + first + v * n);
    nans |= bits_where<T>(inverse != inverse) << (v * n);
  }
  for (Index j0 = 0; j0 < s.kv_len; j0 += s.key_tile) {
    const Index nj = smaller(s.key_tile, s.kv_len - j0);
    T* target = t.weights + (r.i0 - t.q_begin) * t.weights_row_stride + j0;
    if (j0 < begin || j0 >= end) {
      for (Index i = 0; i < r.ni; ++i) {
        for (Index j = 0; j < nj; ++j) target[i * t.weights_row_stride + j] = 0;
      }
      continue;
    }
    for (int v = 0; v < kVectors; ++v) {
      const V shift = load<T>(t.chunk_shifts + j0 / s.key_tile * strip_lanes<T>() + v * n),
              last = load<T>(w.row_max + first + v * n);
      // The shift is above the last one only where the chunk had no key for the lane; then its exponentials are 0.
      const V moved = shift < last ? exp2<T>(shift - last) : splat<T>(1);
      store<T>(w.rescale + v * n, moved * load<T>(w.row_sum + first + v * n));
    }
    unpack_transposed<T>(
        t.exponentials + j0 * strip_lanes<T>(), strip_lanes<T>(), r.ni, nj, w.rescale, target, t.weights_row_stride);
    if (nans != 0) hide_weights(t, w, rows, r, j0, nj, nans);
  }
}

}  // namespace
}  // namespace qkv
