// Tiled backward attention: one query tile against one range of keys, scores recomputed from lse. All five products read
// K, V, Q and dO in their natural rows; only Q^T and dO^T panels are packed. dk, dv, dq and dbias are added to, never owned.
// Dao 2023 (2307.08691), alg. 2:  P = exp(s - lse);  dV = P^T dO;  dP = dO V^T;  dS = P * (dP - delta);  dQ = dS K;  dK = dS^T
// Q.
#pragma once

#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace qkv {
namespace {

/// One strip of a key block, as the passes below share it.
template <class T>
struct StripBlock {
  Index strip, i0, ni, j0, nj;
  LiveRows live;
  T *p, *ds;             // [kBackwardBlock][width], at this strip's column
  std::uint32_t* words;  // [kBackwardBlock]
};

/// P^T and dS^T of one vector of lanes. Forward: s2 = cap * tanh(x) + bias;  p = exp2(s2 - lse2).
template <class T>
inline void differentiate_vector(const BackwardTile<T>& t, const BackwardScratch<T>& w, const StripBlock<T>& b, Index j, int v,
                                 bool general) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const TileScores<T>& s = t.scores;
  T* p_place = b.p + j * w.width + v * n;
  T* ds_place = b.ds + j * w.width + v * n;
  const Index lane = b.strip * kStrip<T> + v * n;
  V x = load<T>(p_place);
  V dp = load<T>(ds_place);
  if (!general) {
    const V p = exp2<T>(x - load<T>(w.lse2_high + lane) - load<T>(w.lse2_low + lane));
    store<T>(p_place, p);
    store<T>(ds_place, p * (dp - load<T>(w.delta + lane)) * s.scale);  // dS = P * (dP - delta)
    return;
  }
  T* bias_place = w.bias + j * kStrip<T> + v * n;
  V slope = splat<T>(s.scale);  // d s / d (q.k)
  if (s.softcap > 0) {
    const V th = tanh<T>(x);
    slope *= T{1} - th * th;  // softcap(y) = c tanh(y / c): its derivative
    x = th * (s.softcap * kLog2E<T>);
  }
  if (s.bias.data != nullptr) x += load<T>(bias_place);
  V p = exp2<T>(x - load<T>(w.lse2_high + lane) - load<T>(w.lse2_low + lane));
  V p_out = p;
  if (s.dropout.threshold != 0) {  // out = sum_j keep * factor * w * v
    const std::uint32_t kept = w.kept[j] >> (v * n);
    const V factor = splat<T>(kept_factor<T>(s.dropout));
    p_out = select_bits<V>(kept, p * factor, V{});
    dp = select_bits<V>(kept, dp * factor, V{});
  }
  V ds = p * (dp - load<T>(w.delta + lane));
  if (b.live.masked) {  // select, so that NaN in a masked key or value is gone
    const std::uint32_t bits = b.words[j] >> (v * n);
    p_out = select_bits<V>(bits, p_out, V{});
    ds = select_bits<V>(bits, ds, V{});
    slope = select_bits<V>(bits, slope, V{});
  }
  store<T>(p_place, p_out);
  store<T>(ds_place, ds * slope);
  if (t.dbias != nullptr) store<T>(bias_place, ds);
}

template <class T>
inline void zero_rows(T* columns, Index width, Index begin, Index end) {
  for (Index j = begin; j < end; ++j) {
    for (Index lane = 0; lane < kStrip<T>; ++lane) columns[j * width + lane] = 0;
  }
}

/// dbias (+)= dS of the rows that live; an axis with stride 0 is summed within the tile first, in one order.
template <class T>
inline void add_bias_gradient(const BackwardTile<T>& t, const BackwardScratch<T>& w, const StripBlock<T>& b) {
  const Index row = t.dbias_row_stride, column = t.dbias_column_stride;
  T* target = t.dbias + b.i0 * row + (b.j0 + b.live.lo) * column;
  const T* source = w.bias + b.live.lo * kStrip<T>;
  const Index rows = b.live.hi - b.live.lo;
  if (row != 0 && column == 1) {
    add_transposed<T>(source, kStrip<T>, b.ni, rows, target, row);
    return;
  }
  // Loops so that the innermost sum runs over an axis that repeats, if there is one.
  const bool sum_keys = column == 0;
  const Index outer = sum_keys ? b.ni : rows, inner = sum_keys ? rows : b.ni;
  for (Index o = 0; o < outer; ++o) {
    T sum = 0;
    for (Index i = 0; i < inner; ++i) {
      const Index j = sum_keys ? i : o, lane = sum_keys ? o : i;
      const T value = source[j * kStrip<T> + lane];
      if (row != 0 && column != 0) {
        target[lane * row + j * column] += value;
      } else {
        sum += value;
      }
    }
    if (row == 0 || column == 0) target[sum_keys ? o * row : o * column] += sum;
  }
}

/// P^T into b.p and dS^T into b.ds, zero where nothing lives.
template <class T>
inline void differentiate_strip(const BackwardTile<T>& t, const BackwardScratch<T>& w, StripBlock<T>& b) {
  const TileScores<T>& s = t.scores;
  b.live = live_rows(s, b.i0, b.ni, b.j0, b.nj, b.words);
  LiveRows& live = b.live;
  if (!live.any) live.lo = live.hi = 0;
  if (live.any) {
    const Index rows = live.hi - live.lo;
    // scores[j, lane] = sum_d k[j, d] q[lane, d];  dP[j, lane] = sum_d v[j, d] dout[lane, d]
    product_strip<T, Store::kSet>({.a = s.k + (b.j0 + live.lo) * s.k_stride,
                                   .a_row = s.k_stride,
                                   .a_depth = 1,
                                   .b = w.q_panels + b.strip * kStrip<T> * s.head_dim,
                                   .b_row = kStrip<T>,
                                   .c = b.p + live.lo * w.width,
                                   .c_row = w.width,
                                   .depth = s.head_dim},
                                  rows, b.ni);
    product_strip<T, Store::kSet>({.a = t.v + (b.j0 + live.lo) * t.v_stride,
                                   .a_row = t.v_stride,
                                   .a_depth = 1,
                                   .b = w.dout_panels + b.strip * kStrip<T> * t.v_head_dim,
                                   .b_row = kStrip<T>,
                                   .c = b.ds + live.lo * w.width,
                                   .c_row = w.width,
                                   .depth = t.v_head_dim},
                                  rows, b.ni);
    if (s.bias.data != nullptr) {
      load_bias(s.bias, b.i0, b.ni, b.j0, live, w.bias);
      live.masked |= scale_bias(w.bias, live, b.ni, b.words);
    }
    if (s.dropout.threshold != 0) dropout_words<T>(s.dropout, b.i0, b.ni, b.j0, live.lo, live.hi, w.kept);
    const bool general =
        live.masked || s.softcap > 0 || s.bias.data != nullptr || s.dropout.threshold != 0 || t.dbias != nullptr;
    const int vectors = live_vectors<T>(b.ni);
    for (Index j = live.lo; j < live.hi; ++j) {
      for (int v = 0; v < vectors; ++v) differentiate_vector(t, w, b, j, v, general);
    }
    if (t.dbias != nullptr) add_bias_gradient(t, w, b);
  }
  zero_rows(b.p, w.width, 0, live.lo);
  zero_rows(b.p, w.width, live.hi, b.nj);
  zero_rows(b.ds, w.width, 0, live.lo);
  zero_rows(b.ds, w.width, live.hi, b.nj);
}

/// What of a block is alive over all its strips: queries [q_lo, q_hi) of the tile, keys [k_lo, k_hi) of the block.
struct LiveBlock {
  Index q_lo, q_hi, k_lo, k_hi;
  bool partial;     // some pair of that rectangle is not kept
  bool hides_keys;  // a key that some query must not see holds NaN or infinity
};

/// C[m] += sum_k A[m, k] * B[k] over pairs with kept(m, k) only, in the order and rounding of `product`: for blocks that hide
/// NaN or infinity behind the mask, since 0 * NaN is NaN.
template <class T, class Kept>
inline void product_of_kept(const Product<T>& p, Index rows, Index columns, const Kept& kept) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index m = 0; m < rows; ++m) {
    for (Index column = 0; column < columns; column += n) {
      const int width = static_cast<int>(smaller<Index>(n, columns - column));
      V sum{};
      for (Index k = 0; k < p.depth; ++k) {
        if (!kept(m, k)) continue;
        sum = fma(splat<T>(p.a[m * p.a_row + k * p.a_depth]), load_tail<T>(p.b + k * p.b_row + column, width), sum);
      }
      T* target = p.c + m * p.c_row + column;
      store_tail<T>(target, load_tail<T>(target, width) + sum, width);
    }
  }
}

template <class T>
inline void add_products(const BackwardTile<T>& t, const BackwardScratch<T>& w, Index j0, const LiveBlock& live,
                         bool wild_queries) {
  const TileScores<T>& s = t.scores;
  const Index queries = live.q_hi - live.q_lo, keys = live.k_hi - live.k_lo;
  const Index q0 = t.q_begin + live.q_lo, k0 = j0 + live.k_lo;
  const T* p = w.p + live.k_lo * w.width + live.q_lo;
  const T* ds = w.ds + live.k_lo * w.width + live.q_lo;
  const auto kept = [&](Index query, Index key) {
    const Index i = live.q_lo + query;
    return (w.words[i / kStrip<T> * kBackwardBlock + live.k_lo + key] >> (i % kStrip<T>)&1u) != 0;
  };
  const auto add = [&](const Product<T>& sums, Index rows, Index columns, bool hides, const auto& pair_kept) {
    if (hides) {
      product_of_kept(sums, rows, columns, pair_kept);
    } else {
      product<T, Store::kAdd>(sums, rows, columns);
    }
  };
  const auto add_to_keys = [&](const Product<T>& sums, Index columns) {
    add(sums, keys, columns, live.partial && wild_queries, [&](Index key, Index query) { return kept(query, key); });
  };
  if (t.dv != nullptr) {  // dv[j, d] += sum_i p[j, i] * dout[i, d]
    add_to_keys({.a = p,
                 .a_row = w.width,
                 .a_depth = 1,
                 .b = t.dout + q0 * t.dout_stride,
                 .b_row = t.dout_stride,
                 .c = t.dv + k0 * t.dv_stride,
                 .c_row = t.dv_stride,
                 .depth = queries},
                t.v_head_dim);
  }
  if (t.dk != nullptr) {  // dk[j, d] += sum_i ds[j, i] * q[i, d]
    add_to_keys({.a = ds,
                 .a_row = w.width,
                 .a_depth = 1,
                 .b = s.q + q0 * s.q_stride,
                 .b_row = s.q_stride,
                 .c = t.dk + k0 * t.dk_stride,
                 .c_row = t.dk_stride,
                 .depth = queries},
                s.head_dim);
  }
  if (t.dq == nullptr) return;
  add({.a = ds,  // dq[i, d] += sum_j ds[j, i] * k[j, d]
       .a_row = 1,
       .a_depth = w.width,
       .b = s.k + k0 * s.k_stride,
       .b_row = s.k_stride,
       .c = t.dq + q0 * t.dq_stride,
       .c_row = t.dq_stride,
       .depth = keys},
      queries, s.head_dim, live.hides_keys, kept);
}

template <class T>
inline void backward_block(const BackwardTile<T>& t, const BackwardScratch<T>& w, Index strips, Index j0, Index nj,
                           bool wild_queries) {
  const TileScores<T>& s = t.scores;
  LiveBlock all{t.q_count, 0, nj, 0, false, false};
  for (Index strip = 0; strip < strips; ++strip) {
    StripBlock<T> b{};
    b.strip = strip;
    b.i0 = t.q_begin + strip * kStrip<T>;
    b.ni = smaller<Index>(kStrip<T>, t.q_begin + t.q_count - b.i0);
    b.j0 = j0;
    b.nj = nj;
    b.p = w.p + strip * kStrip<T>;
    b.ds = w.ds + strip * kStrip<T>;
    b.words = w.words + strip * kBackwardBlock;
    differentiate_strip(t, w, b);
    if (!b.live.any || !b.live.masked) {
      for (Index j = 0; j < nj; ++j) b.words[j] = b.live.any ? ~0u : 0u;
    }
    all.partial |= !b.live.any || b.live.masked;
    if (!b.live.any) continue;
    all.q_lo = smaller(all.q_lo, strip * kStrip<T>);
    all.q_hi = larger(all.q_hi, smaller(t.q_count, (strip + 1) * kStrip<T>));
    all.k_lo = smaller(all.k_lo, b.live.lo);
    all.k_hi = larger(all.k_hi, b.live.hi);
  }
  if (all.q_lo >= all.q_hi) return;
  // Also for a strip without a live pair, which may lie between others.
  for (Index strip = all.q_lo / kStrip<T>; all.partial && strip * kStrip<T> < all.q_hi; ++strip) {
    const Index ni = smaller<Index>(kStrip<T>, t.q_count - strip * kStrip<T>);
    all.hides_keys |= hides_nonfinite(s.k + j0 * s.k_stride, s.k_stride, s.head_dim, LiveRows{true, true, all.k_lo, all.k_hi},
                                      lane_bits(ni), w.words + strip * kBackwardBlock);
  }
  add_products(t, w, j0, all, wild_queries);
}

template <class T>
void backward(const BackwardTile<T>& t, void* scratch) {
  const TileScores<T>& s = t.scores;
  const BackwardScratch<T> w(scratch, s.head_dim, t.v_head_dim);
  const Index strips = (t.q_count + kStrip<T> - 1) / kStrip<T>;
  pack_strips(s.q, s.q_stride, t.q_begin, t.q_count, s.head_dim, panel_factor(s), w.q_panels);
  pack_strips(t.dout, t.dout_stride, t.q_begin, t.q_count, t.v_head_dim, T{1}, w.dout_panels);
  for (Index i = 0; i < strips * kStrip<T>; ++i) {
    const bool live = i < t.q_count;
    w.lse2_high[i] = live ? t.lse2_high[t.q_begin + i] : T{0};
    w.lse2_low[i] = live ? t.lse2_low[t.q_begin + i] : T{0};
    w.delta[i] = live ? t.delta[t.q_begin + i] : T{0};
  }
  const bool masked = s.mask.tile != nullptr || s.bias.data != nullptr;
  const bool wild = masked && (holds_nonfinite(s.q + t.q_begin * s.q_stride, s.q_stride, t.q_count, s.head_dim) ||
                               holds_nonfinite(t.dout + t.q_begin * t.dout_stride, t.dout_stride, t.q_count, t.v_head_dim));
  for (Index j0 = t.k_begin; j0 < t.k_begin + t.k_count; j0 += kBackwardBlock) {
    backward_block(t, w, strips, j0, smaller(kBackwardBlock, t.k_begin + t.k_count - j0), wild);
  }
}

template <class T>
void delta_rows(const DeltaRows<T>& t, void* scratch) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const BackwardScratch<T> w(scratch, t.v_head_dim, t.v_head_dim);
  T* out_panel = w.q_panels;
  T* dout_panel = w.dout_panels;
  for (Index i0 = t.q_begin; i0 < t.q_begin + t.q_count; i0 += kStrip<T>) {
    const Index ni = smaller<Index>(kStrip<T>, t.q_begin + t.q_count - i0);
    pack_strips(t.out, t.out_stride, i0, ni, t.v_head_dim, T{1}, out_panel);
    pack_strips(t.dout, t.dout_stride, i0, ni, t.v_head_dim, T{1}, dout_panel);
    for (int v = 0; v < live_vectors<T>(ni); ++v) {
      V sum{};
      for (Index d = 0; d < t.v_head_dim; ++d) {
        sum = fma(load<T>(out_panel + d * kStrip<T> + v * n), load<T>(dout_panel + d * kStrip<T> + v * n), sum);
      }
      const int live = static_cast<int>(larger<Index>(0, smaller<Index>(n, ni - v * n)));
      store_tail<T>(t.delta + i0 + v * n, sum, live);
    }
  }
}

}  // namespace
}  // namespace qkv
