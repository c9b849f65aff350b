// Attention on 16-bit rows by the float kernels: Q, K, V and dout rows are widened to float in scratch memory, a chunk of keys
// at a time and once for all strips of a query tile, and out rows are rounded once, at the end. Gradients are summed in float
// and rounded by the caller. Widening a key costs two passes over its numbers, its products with a tile a hundred times that.
// Not: products in 16 bits (bf16_forward.h, bf16_backward.h).
#pragma once

#include "kernels/attention/backward.h"
#include "kernels/attention/forward.h"
#include "simd/widen.h"

namespace qkv {
namespace {

/// The same scores of float rows without gaps; q and k are null until the caller has widened them.
template <class S>
inline TileScores<float> float_scores(const TileScores<S>& s) {
  return {s, nullptr, nullptr, s.head_dim, s.head_dim};
}

/// Widens rows [begin, begin + count) and returns where row 0 would be, so that callers keep their own row numbers.
template <class S>
inline const float* widened(const S* rows, Index stride, Index begin, Index count, Index width, float* to) {
  widen_rows(rows + begin * stride, stride, count, width, to);
  return to - begin * width;
}

template <class S>
inline ForwardTile<float> float_forward(const ForwardTile<S>& t) {
  return {t, float_scores(t.scores), nullptr, nullptr, t.v_head_dim, t.v_head_dim};
}

/// Forward scratch with room for rows that cannot be read or written in place.
template <class T>
struct ForwardRowsScratch {
  ForwardScratch<T> tile;
  Carver carver;
  // [strip][larger of D and Dv]: queries on their way in, results on their way out.
  T* rows = carver.take<T>(strip_lanes<T>() * larger(tile.head_dim, tile.v_head_dim));
  T* k = carver.take<T>(tile.keys * tile.head_dim);    // [key_tile][D]
  T* v = carver.take<T>(tile.keys * tile.v_head_dim);  // [key_tile][Dv]
  std::size_t bytes = carver.used();

  ForwardRowsScratch(void* base, Index d, Index dv, Index queries) : tile(base, d, dv, queries), carver(base, tile.bytes) {}
};

struct WidenedForwardScratch : ForwardRowsScratch<float> {
  WidenedForwardScratch(void* base, Index head_dim, Index v_head_dim)
      : ForwardRowsScratch(base, head_dim, v_head_dim, widened_query_tile(head_dim, v_head_dim)) {}
};

/// Widens the rows that forward_tile is about to read and rounds those that it has written.
template <class S>
struct WidenedRows : PlainProducts {
  const ForwardTile<S>& t;
  const WidenedForwardScratch& w;
  mutable Ahead ahead;  // rows of the next chunk

  WidenedRows(const ForwardTile<S>& tile, const WidenedForwardScratch& scratch) : t(tile), w(scratch) { in_place = false; }

  void pack_queries(ForwardTile<float> f, const ForwardScratch<float>& panels, const StripRange& r) const {
    f.scores.q = widened(t.scores.q, t.scores.q_stride, r.i0, r.ni, t.scores.head_dim, w.rows);
    PlainProducts::pack_queries(f, panels, r);
  }
  void take_keys(ForwardTile<float>& f, Index j0, Index nj) const {
    f.scores.k = widened(t.scores.k, t.scores.k_stride, j0, nj, t.scores.head_dim, w.k);
    if (waits_for_keys(f)) fetch_chunk(f, j0 + nj);
  }
  void take_values(ForwardTile<float>& f, Index j0, Index nj) const {
    f.v = widened(t.v, t.v_stride, j0, nj, t.v_head_dim, w.v);
  }
  void begin_out(ForwardTile<float>& f, const StripRange& r) const { f.out = w.rows - r.i0 * t.v_head_dim; }
  void end_out(const ForwardTile<float>&, const StripRange& r) const {
    narrow_rows(w.rows, r.ni, t.v_head_dim, t.out + r.i0 * t.out_stride, t.out_stride);
  }

 private:
  /// Rows of K and V of the chunk that begins there, over the products of this one.
  [[gnu::noinline]] void fetch_chunk(ForwardTile<float>& f, Index begin) const {
    const TileScores<S>& s = t.scores;
    const Index count = smaller(s.key_tile, s.kv_len - begin);
    f.ahead = &ahead;
    ahead = {};
    if (count <= 0) return;
    add_rows(ahead, s.k + begin * s.k_stride, s.k_stride, s.head_dim, count);
    if (t.v != nullptr) add_rows(ahead, t.v + begin * t.v_stride, t.v_stride, t.v_head_dim, count);
    constexpr Index n = Simd<float>::kLanes;
    begin_ahead(&ahead, (s.key_tile + n - 1) / n + (t.v_head_dim + 2 * n - 1) / (2 * n));
  }
};

template <class S, class Observer>
inline void forward_widened_observed(const ForwardTile<S>& t, void* scratch, const Observer& observer) {
  const WidenedForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  ForwardTile<float> f = float_forward(t);
  f.v = t.v == nullptr ? nullptr : w.v;
  forward_tile(f, w.tile, WidenedRows<S>(t, w), observer);
}

template <class S>
void forward_widened(const ForwardTile<S>& t, void* scratch) {
  forward_widened_observed(t, scratch, NoObserver{});
}

struct WidenedBackwardScratch {
  BackwardScratch<float> tile;
  Carver carver;
  Index keys = backward_keys<float>(tile.head_dim, tile.v_head_dim);
  float* q = carver.take<float>(tile.width * tile.head_dim);       // [query_tile][D]
  float* dout = carver.take<float>(tile.width * tile.v_head_dim);  // [query_tile][Dv]
  float* k = carver.take<float>(keys * tile.head_dim);             // [backward_keys][D]
  float* v = carver.take<float>(keys * tile.v_head_dim);           // [backward_keys][Dv]
  std::size_t bytes = carver.used();

  WidenedBackwardScratch(void* base, Index d, Index dv)
      : tile(base, d, dv, widened_query_tile(d, dv)), carver(base, tile.bytes) {}
};

template <class S>
inline BackwardTile<float> float_backward(const BackwardTile<S>& t) {
  return {t, float_scores(t.scores), nullptr, nullptr, t.v_head_dim, t.v_head_dim};
}

template <class S>
void backward_widened(const BackwardTile<S>& t, void* scratch) {
  const TileScores<S>& s = t.scores;
  WidenedBackwardScratch w(scratch, s.head_dim, t.v_head_dim);
  BackwardTile<float> f = float_backward(t);
  f.scores.q = widened(s.q, s.q_stride, t.q_begin, t.q_count, s.head_dim, w.q);
  f.scores.k = widened(s.k, s.k_stride, t.k_begin, t.k_count, s.head_dim, w.k);
  f.dout = widened(t.dout, t.dout_stride, t.q_begin, t.q_count, t.v_head_dim, w.dout);
  f.v = widened(t.v, t.v_stride, t.k_begin, t.k_count, t.v_head_dim, w.v);
  backward_tile(f, w.tile, PlainOperands<float>{f, w.tile});
}

template <class S>
void delta_rows_widened(const DeltaRows<S>& t, void* scratch) {
  const WidenedBackwardScratch w(scratch, t.v_head_dim, t.v_head_dim);
  DeltaRows<float> f{};
  f.dout_stride = f.out_stride = f.v_head_dim = t.v_head_dim;
  f.delta = t.delta;
  for (Index i0 = t.q_begin; i0 < t.q_begin + t.q_count; i0 += strip_lanes<float>()) {
    f.q_begin = i0;
    f.q_count = smaller<Index>(strip_lanes<float>(), t.q_begin + t.q_count - i0);
    f.dout = widened(t.dout, t.dout_stride, i0, f.q_count, t.v_head_dim, w.dout);
    f.out = widened(t.out, t.out_stride, i0, f.q_count, t.v_head_dim, w.q);
    delta_strips(f, w.tile.q_panels, w.tile.dout_panels);
  }
}

template <class S>
void round_rows(const float* sums, Index rows, Index columns, S* to, Index stride, bool add) {
  if (!add) {
    narrow_rows(sums, rows, columns, to, stride);
    return;
  }
  constexpr int n = Simd<float>::kLanes;
  for (Index r = 0; r < rows; ++r, sums += columns, to += stride) {
    for (Index c = 0; c < columns; c += n) {
      const int width = static_cast<int>(smaller<Index>(n, columns - c));
      store_narrowed_tail(to + c, load_widened_tail(to + c, width) + load_tail<float>(sums + c, width), width);
    }
  }
}

}  // namespace
}  // namespace qkv
