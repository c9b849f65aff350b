// Tiled forward attention with online softmax. Scores are kept transposed (lanes = queries), so that K and V are read in their
// natural rows by broadcast, softmax is vertical, and only the small Q^T panel is packed.
// Not: key splitting, 16-bit rows (half.h). Milakov & Gimelshein 2018 (1805.02867); Dao 2023 (2307.08691), alg. 1.
#pragma once

#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace qkv {
namespace {

/// One chunk joins the running softmax of a strip: scores become exp2(s2 - max), row_max and row_sum move on, rescale is what
/// the result so far must be multiplied by: exactly 1 where the maximum stayed. kLive: vectors that hold queries.
template <class T, int kLive>
inline void online_softmax(T* scores, Index lo, Index hi, T* row_max, T* row_sum, T* rescale) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V maximum[kLive], shift[kLive], sum[kLive];
#pragma GCC unroll 4
  for (int v = 0; v < kLive; ++v) maximum[v] = load<T>(row_max + v * n);
  for (Index j = lo; j < hi; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kLive; ++v) maximum[v] = max_or_second(load<T>(scores + j * kStrip<T> + v * n), maximum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kLive; ++v) {
    const V before = load<T>(row_max + v * n);
    const V factor = exp2<T>(before - maximum[v]);
    store<T>(rescale + v * n, before == maximum[v] ? splat<T>(1) : factor);
    store<T>(row_max + v * n, maximum[v]);
    shift[v] = maximum[v] == splat<T>(-kInf<T>) ? V{} : maximum[v];  // nothing alive yet: -inf - 0, not -inf + inf
    sum[v] = V{};
  }
  for (Index j = lo; j < hi; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kLive; ++v) {
      T* place = scores + j * kStrip<T> + v * n;
      const V p = exp2<T>(load<T>(place) - shift[v]);
      sum[v] += p;
      store<T>(place, p);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kLive; ++v) {
    store<T>(row_sum + v * n, fma(load<T>(row_sum + v * n), load<T>(rescale + v * n), sum[v]));
  }
}

/// Lanes that may attend some key of the tile.
inline std::uint32_t seen_lanes(const LiveRows& live, const std::uint32_t* words) {
  if (!live.masked) return ~0u;
  std::uint32_t seen = 0;
  for (Index j = live.lo; j < live.hi; ++j) seen |= words[j];
  return seen;
}

/// scores[j] = 0 in dropped lanes.
template <class T>
inline void drop_lanes(T* scores, int vectors, Index lo, Index hi, const std::uint32_t* kept) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index j = lo; j < hi; ++j) {
    for (int v = 0; v < vectors; ++v) {
      T* place = scores + j * kStrip<T> + v * n;
      store<T>(place, select_bits<V>(kept[j] >> (v * n), load<T>(place), V{}));
    }
  }
}

/// out[d] = out[d] * rescale + sum over the kept lanes only: for tiles that hide NaN or infinity behind the mask.
template <class T>
inline void add_kept_lanes(int vectors, const T* v_rows, Index v_stride, Index width, const T* p, const LiveRows& live,
                           const std::uint32_t* words, const T* rescale, T* out) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index d = 0; d < width; ++d) {
    for (int v = 0; v < vectors; ++v) {
      V sum{};
      for (Index j = live.lo; j < live.hi; ++j) {
        const V next = fma(splat<T>(v_rows[j * v_stride + d]), load<T>(p + j * kStrip<T> + v * n), sum);
        sum = select_bits<V>(words[j] >> (v * n), next, sum);
      }
      T* place = out + d * kStrip<T> + v * n;
      store<T>(place, fma(load<T>(place), load<T>(rescale + v * n), sum));
    }
  }
}

template <class T>
inline void forward_strip_chunk(const ForwardTile<T>& t, const ForwardScratch<T>& w, Index strip, Index j0, Index nj) {
  const TileScores<T>& s = t.scores;
  const Index i0 = t.q_begin + strip * kStrip<T>;
  const Index ni = smaller<Index>(kStrip<T>, t.q_begin + t.q_count - i0);
  const LiveRows live = score_tile(s, w.q_panels + strip * kStrip<T> * s.head_dim, i0, ni, j0, nj, w.scores, w.bias, w.words);
  if (!live.any) return;
  w.seen[strip] |= seen_lanes(live, w.words);
  T *row_max = w.row_max + strip * kStrip<T>, *row_sum = w.row_sum + strip * kStrip<T>;
  const int vectors = live_vectors<T>(ni);
  if (vectors == kVectors) {
    online_softmax<T, kVectors>(w.scores, live.lo, live.hi, row_max, row_sum, w.rescale);
  } else {
    online_softmax<T, 1>(w.scores, live.lo, live.hi, row_max, row_sum, w.rescale);
  }
  if (t.v == nullptr) return;
  T* out = w.out_panels + strip * kStrip<T> * t.v_head_dim;
  const T* v_rows = t.v + j0 * t.v_stride;
  const bool hides = live.masked && hides_nonfinite(v_rows, t.v_stride, t.v_head_dim, live, lane_bits(ni), w.words);
  if (s.dropout.threshold != 0) {
    dropout_words<T>(s.dropout, i0, ni, j0, live.lo, live.hi, w.kept);
    drop_lanes(w.scores, vectors, live.lo, live.hi, w.kept);
  }
  if (hides) {
    add_kept_lanes(vectors, v_rows, t.v_stride, t.v_head_dim, w.scores, live, w.words, w.rescale, out);
    return;
  }
  // out[d, lane] = out[d, lane] * rescale[lane] + sum_j v[j, d] * p[j, lane]
  product_strip<T, Store::kRescale>({.a = v_rows + live.lo * t.v_stride,
                                     .a_row = 1,
                                     .a_depth = t.v_stride,
                                     .b = w.scores + live.lo * kStrip<T>,
                                     .b_row = kStrip<T>,
                                     .c = out,
                                     .c_row = kStrip<T>,
                                     .depth = live.hi - live.lo,
                                     .factor = w.rescale},
                                    t.v_head_dim, ni);
}

/// Divides by row_sum, transposes back, and turns (row_max, row_sum) into the natural lse. row_sum becomes its reciprocal.
template <class T>
inline void finish_strip(const ForwardTile<T>& t, const ForwardScratch<T>& w, Index strip) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const Index first = strip * kStrip<T>;
  const Index ni = smaller<Index>(kStrip<T>, t.q_count - first);
  constexpr double ln2 = 0.69314718055994530942;
  for (Index lane = 0; lane < ni; ++lane) {
    T& l = w.row_sum[first + lane];
    // Not an empty row: every kept score is -inf, and the formula's -inf - -inf is NaN.
    if (l == 0 && (w.seen[strip] >> lane & 1u) != 0) l = kNan<T>;
    t.lse[first + lane] =
        l == 0 ? -kInf<T>
               : static_cast<T>(static_cast<double>(w.row_max[first + lane]) * ln2 + __builtin_log(static_cast<double>(l)));
    if (t.row_max2 == nullptr) continue;
    t.row_max2[first + lane] = w.row_max[first + lane];
    t.row_sum[first + lane] = l;
  }
  const int vectors = live_vectors<T>(ni);
  V inverse[kVectors];
  const V factor = splat<T>(t.scores.dropout.threshold == 0 ? T{1} : kept_factor<T>(t.scores.dropout));
  for (int v = 0; v < vectors; ++v) {
    T* place = w.row_sum + first + v * n;
    const V l = load<T>(place);
    inverse[v] = l == V{} ? V{} : T{1} / l;
    store<T>(place, inverse[v]);
    inverse[v] *= factor;
  }
  if (t.v == nullptr) return;
  T* panel = w.out_panels + first * t.v_head_dim;
  for (Index d = 0; d < t.v_head_dim; ++d) {
    for (int v = 0; v < vectors; ++v) {
      T* place = panel + d * kStrip<T> + v * n;
      store<T>(place, load<T>(place) * inverse[v]);
    }
  }
  unpack_transposed<T>(panel, kStrip<T>, ni, t.v_head_dim, t.out + (t.q_begin + first) * t.out_stride, t.out_stride);
}

/// weights[i, j] = exp2(s2 - max) / sum, 0 where not kept: a second sweep, so that no S x S temporary is needed.
template <class T>
inline void write_weights(const ForwardTile<T>& t, const ForwardScratch<T>& w, Index strip, Index j0, Index nj) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const TileScores<T>& s = t.scores;
  const Index first = strip * kStrip<T>, i0 = t.q_begin + first;
  const Index ni = smaller<Index>(kStrip<T>, t.q_begin + t.q_count - i0);
  const int vectors = live_vectors<T>(ni);
  LiveRows live = score_tile(s, w.q_panels + first * s.head_dim, i0, ni, j0, nj, w.scores, w.bias, w.words);
  if (!live.any) live.lo = live.hi = 0;
  const bool applied = t.weights_applied && s.dropout.threshold != 0;
  const V factor = splat<T>(applied ? kept_factor<T>(s.dropout) : T{1});
  for (Index j = 0; j < nj; ++j) {
    for (int v = 0; v < vectors; ++v) {
      T* place = w.scores + j * kStrip<T> + v * n;
      if (j < live.lo || j >= live.hi) {
        store<T>(place, V{});
        continue;
      }
      const V maximum = load<T>(w.row_max + first + v * n);
      const V shift = maximum == splat<T>(-kInf<T>) ? V{} : maximum;
      store<T>(place, exp2<T>(load<T>(place) - shift) * load<T>(w.row_sum + first + v * n) * factor);
    }
  }
  if (applied && live.lo < live.hi) {
    dropout_words<T>(s.dropout, i0, ni, j0, live.lo, live.hi, w.kept);
    drop_lanes(w.scores, vectors, live.lo, live.hi, w.kept);
  }
  unpack_transposed<T>(w.scores, kStrip<T>, ni, nj, t.weights + i0 * t.weights_row_stride + j0, t.weights_row_stride);
}

/// No key seen yet.
template <class T>
inline void start_strips(const ForwardTile<T>& t, const ForwardScratch<T>& w, Index strips) {
  for (Index strip = 0; strip < strips; ++strip) w.seen[strip] = 0;
  for (Index lane = 0; lane < strips * kStrip<T>; ++lane) {
    w.row_max[lane] = -kInf<T>;
    w.row_sum[lane] = 0;
  }
  if (t.v != nullptr) {
    for (Index e = 0; e < strips * kStrip<T> * t.v_head_dim; ++e) w.out_panels[e] = 0;
  }
}

/// chunk(j0, nj) for each chunk of keys that some query of the tile may attend, from the left.
template <class T, class Chunk>
inline void for_live_chunks(const ForwardTile<T>& t, const Chunk& chunk) {
  const TileScores<T>& s = t.scores;
  Index begin = 0, end = s.kv_len;
  if (s.mask.key_range != nullptr) s.mask.key_range(s.mask.mask, s.mask.batch, s.mask.head, t.q_begin, t.q_count, &begin, &end);
  for (Index j0 = begin / s.key_tile * s.key_tile; j0 < end; j0 += s.key_tile) {
    chunk(j0, smaller(s.key_tile, s.kv_len - j0));
  }
}

template <class T>
void forward(const ForwardTile<T>& t, void* scratch) {
  const TileScores<T>& s = t.scores;
  const ForwardScratch<T> w(scratch, s.head_dim, t.v_head_dim);
  const Index strips = (t.q_count + kStrip<T> - 1) / kStrip<T>;
  pack_strips(s.q, s.q_stride, t.q_begin, t.q_count, s.head_dim, panel_factor(s), w.q_panels);
  start_strips(t, w, strips);
  for_live_chunks(t, [&](Index j0, Index nj) {
    for (Index strip = 0; strip < strips; ++strip) forward_strip_chunk(t, w, strip, j0, nj);
  });
  for (Index strip = 0; strip < strips; ++strip) finish_strip(t, w, strip);
  if (t.weights == nullptr) return;
  for (Index j0 = 0; j0 < s.kv_len; j0 += s.key_tile) {
    const Index nj = smaller(s.key_tile, s.kv_len - j0);
    for (Index strip = 0; strip < strips; ++strip) write_weights(t, w, strip, j0, nj);
  }
}

}  // namespace
}  // namespace qkv
