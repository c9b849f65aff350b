// Backward on 16-bit rows by the float kernels: Q, K, V and dout rows are widened to float in scratch memory; gradients are summed
// in float and rounded by the caller. Not: forward (paged_rows.h), products in 16 bits (bf16_backward.h).
#pragma once

#include "kernels/attention/backward.h"
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
