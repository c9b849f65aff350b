// Tiled backward attention: one query tile against one range of keys, scores recomputed from lse. All products read
// K, V, Q and dO in their natural rows; only Q^T and dO^T panels are packed. dk, dv, dq and dbias are set or added
// to. Policy: Operands (of the products: PlainOperands, Bf16Operands).
// Dao 2023 (2307.08691), alg. 2:
// P = exp(s - lse);  dV = P^T dO;  dP = dO V^T;  dS = P * (dP - delta);  dQ = dS K;  dK = dS^T Q.
#pragma once

#include "kernels/attention/differentiate.h"
#include "kernels/attention/live_spans.h"
#include "kernels/cache/rows.h"
#include "kernels/products/bf16_terms.h"

namespace qkv {
namespace {

/// Keys [j0, j0 + nj) against the queries of the tile.
struct BackwardBlock {
  Index j0, nj;
  bool sets_dq;                    // dq is set, not added to
  bool partial = false;            // some pair is not kept
  bool any = false;                // some pair is kept
  bool nonfinite_keys = false;     // partial, and K holds NaN or infinity
  bool nonfinite_queries = false;  // partial, and Q or dO do
};

/// C[m] (+)= factor * sum_k A[m, k] * B[k] over pairs with kept(m, k) only, with the order and rounding of
/// `product_spans`: for blocks with NaN or infinity behind the mask, since 0 * NaN is NaN.
template <class N, class Kept>
inline void product_of_kept(const Product<N>& p, Index rows, Index columns, bool sets, const Kept& kept) {
  using Sum = typename Terms<N>::Sum;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  constexpr Index numbers = Terms<N>::kNumbers;
  for (Index m = 0; m < rows; ++m) {
    for (Index column = 0; column < columns; column += n) {
      const int width = static_cast<int>(smaller<Index>(n, columns - column));
      Chain<N> chain;
      for (Index k = 0; k < p.depth; k += numbers) {
        const bool last = numbers > 1 && k + 1 == p.depth;
        const bool first = kept(m, k), second = numbers > 1 && !last && kept(m, k + 1);
        if (!first && !second) continue;
        const auto* a = p.a + m * p.a_row + k / numbers * p.a_depth;
        const auto b =
            Terms<N>::keep(Terms<N>::load_b_tail(p.b + k / numbers * p.b_row + column, width), first, second);
        chain.add(k, last ? Terms<N>::splat_last(a) : Terms<N>::splat_a(a), b);
      }
      const V sum = chain.total();
      Sum* target = p.c + m * p.c_row + column;
      const V factor = splat<Sum>(*p.factor);
      store_tail<Sum>(target, sets ? sum * factor : fma(factor, sum, load_tail<Sum>(target, width)), width);
    }
  }
}

/// The product over the spans or, where masked pairs are not finite, over the kept pairs.
template <class N, class Kept> inline void add_product(
    const Product<N>& p, Index rows, Index columns, const Span* depth_of, bool sets, bool nonfinite, const Kept& kept) {
  if (nonfinite) {
    product_of_kept(p, rows, columns, sets, kept);
  } else if (sets) {
    product_spans<N, Store::kScale>(p, rows, columns, depth_of);
  } else {
    product_spans<N, Store::kScaleAdd>(p, rows, columns, depth_of);
  }
}

/// Whether a query (counted from the tile's first) attends a key (from the block's first). Valid where find_nonfinite
/// found something.
template <class T> inline bool pair_kept(const BackwardScratch<T>& w, Index query, Index key) {
  return (w.lane_mask[query / strip_lanes<T>() * kBackwardBlock + key] >> (query % strip_lanes<T>()) & 1u) != 0;
}

template <class T, class Operands> inline void add_products(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const Operands& operands, const BackwardBlock& b) {
  using N = typename Operands::Number;
  const ScoreParams<T>& s = t.scores;
  const T dropped = s.dropout.threshold == 0 ? T{1} : kept_factor<T>(s.dropout);
  const auto add_to_keys = [&](Product<N> sums, T* c, Index c_row, const T& factor, Index columns) {
    sums.c = c + (b.j0 - t.k_begin) * c_row;
    sums.c_row = c_row;
    sums.factor = &factor;
    add_product(sums, b.nj, columns, w.spans.queries_of, t.sets_keys, b.nonfinite_queries,
        [&](Index key, Index query) { return pair_kept(w, query, key); });
  };
  // dv[j, d] += factor * sum_i p[j, i] * dout[i, d]
  if (t.dv != nullptr) add_to_keys(operands.dv_product(), t.dv, t.dv_stride, dropped, t.v_head_dim);
  // dk[j, d] += scale * sum_i ds[j, i] * q[i, d]
  if (t.dk != nullptr) add_to_keys(operands.dk_product(), t.dk, t.dk_stride, s.scale, s.head_dim);
  if (t.dq == nullptr) return;
  // dq[i, d] += scale * sum_j ds[j, i] * k[j, d]
  Product<N> sums = operands.dq_product(b);
  sums.c = t.dq;
  sums.c_row = t.dq_stride;
  sums.factor = &s.scale;
  add_product(sums, t.q_count, s.head_dim, w.spans.keys_of, b.sets_dq, b.nonfinite_keys,
      [&](Index query, Index key) { return pair_kept(w, query, key); });
}

/// Scores and dP within each vector's span.
template <class T, class Operands> inline void score_block(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const Operands& operands, const BackwardBlock& b) {
  using N = typename Operands::Number;
  const T factor = panel_factor(t.scores);
  for (Index first = 0; first < t.q_count; first += kWideLanes<T>) {
    const Span* const keys_of = w.spans.vector_keys + first / Simd<T>::kLanes;
    Product<N> sums = operands.score_product(b, first);  // scores[j, lane] = sum_d k[j, d] q[lane, d]
    sums.c = w.p + first;
    sums.c_row = w.row;
    sums.factor = &factor;
    product_of_vectors<N, kWideVectors, Operands::kStoreScores>(sums, keys_of, 0, {});
    sums = operands.dp_product(b, first);  // dP[j, lane] = sum_d v[j, d] dout[lane, d]
    sums.c = w.ds + first;
    sums.c_row = w.row;
    product_of_vectors<N, kWideVectors, Store::kSet>(sums, keys_of, 0, {});
  }
}

/// Zeros P and dS where the products dK and dV read them outside every vector's span.
template <class T> inline void clear_gaps(const BackwardScratch<T>& w, Index keys) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index j = 0; j < keys; j += kGroup) {
    const Span queries = w.spans.queries_of[j / kGroup];
    for (Index first = queries.begin / n * n; first < queries.end; first += n) {
      const Span set = w.spans.vector_keys[first / n];
      if (j >= set.begin && j < set.end) continue;
      for (Index key = j; key < smaller(keys, j + kGroup); ++key) {
        store<T>(w.p + key * w.row + first, V{});
        store<T>(w.ds + key * w.row + first, V{});
      }
    }
  }
}

/// The lane masks of a block, strip by strip, and its live spans.
template <class T>
inline void mask_block(const BackwardTile<T>& t, const BackwardScratch<T>& w, BackwardBlock& b, BlockStrip<T>* strips) {
  for (Index j = 0; j < b.nj; j += kGroup) w.spans.queries_of[j / kGroup] = {0, 0};
  for (Index first = 0; first < t.q_count; first += strip_lanes<T>()) {
    const Index strip = first / strip_lanes<T>(), ni = smaller<Index>(strip_lanes<T>(), t.q_count - first);
    BlockStrip<T>& block_strip = strips[strip];
    block_strip = {strip, t.q_begin + first, ni, b.j0, b.nj, {}, w.lane_mask + strip * kBackwardBlock};
    block_strip.live = live_range(t.scores, block_strip.i0, ni, b.j0, b.nj, block_strip.lane_mask);
    const LiveRange& live = block_strip.live;
    b.any |= live.any;
    b.partial |= !live.any || live.masked;
    if (live.any && live.masked) {
      add_masked_strip(block_strip.lane_mask, first, ni, b.nj, w.spans);
    } else {
      add_whole_strip(live.any, first, ni, b.nj, w.spans);
    }
    block_strip.live.lo = live.lo / kGroup * kGroup;  // what the spans hold
    block_strip.live.hi = smaller(b.nj, round_up(live.hi, kGroup));
  }
  find_vector_spans<T>(t.q_count, w.spans);
}

/// Records which side of the masked pairs holds NaN or infinity; if any does, fills the lane masks of unmasked and
/// empty strips too, for pair_kept.
template <class T> inline void find_nonfinite(
    Index q_count, bool nonfinite_keys, bool nonfinite_queries, const BlockStrip<T>* strips, BackwardBlock& b) {
  b.nonfinite_keys = nonfinite_keys;
  b.nonfinite_queries = nonfinite_queries;
  if (!nonfinite_keys && !nonfinite_queries) return;
  for (Index strip = 0; strip * strip_lanes<T>() < q_count; ++strip) {
    const LiveRange& live = strips[strip].live;
    if (live.any && live.masked) continue;
    for (Index j = 0; j < b.nj; ++j) strips[strip].lane_mask[j] = live.any ? ~0u : 0u;
  }
}

/// About how many blocks the products of `keys` keys have (blocks_of of forward.h).
template <class T> inline Index blocks_of(const BackwardTile<T>& t, Index keys) {
  constexpr Index rows = kRows / 2;  // of a block of product_spans
  const auto columns = [](Index width) { return (width + kWideLanes<T> - 1) / kWideLanes<T>; };
  const Index of_keys = keys * (2 * columns(t.q_count) + columns(t.v_head_dim) + columns(t.scores.head_dim));
  const Index of_queries = t.q_count * columns(t.scores.head_dim) * ((keys + kBackwardBlock - 1) / kBackwardBlock);
  return (of_keys + of_queries) / (t.scores.mask.tile == nullptr ? rows : 2 * rows);
}

/// The rest of this block's rows of the bias and of its gradient, and then, over its products, those of the next
/// block, keys [begin, end).
template <class T> [[gnu::noinline]] void fetch_bias(const BackwardTile<T>& t, Index begin, Index end, Ahead& ahead) {
  fetch_rest(ahead);
  ahead = {};
  if (begin >= end) return;
  const TileBias<T>& bias = t.scores.bias;
  add_rows(ahead, bias.data + t.q_begin * bias.row_stride + begin, bias.row_stride, end - begin, t.q_count);
  if (t.dbias != nullptr && t.dbias_row_stride != 0 && t.dbias_column_stride == 1) {
    add_rows(ahead, t.dbias + t.q_begin * t.dbias_row_stride + begin, t.dbias_row_stride, end - begin, t.q_count);
  }
  begin_ahead(&ahead, blocks_of(t, kBackwardBlock));
}

template <class T, class Operands> inline void backward_block(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const Operands& operands, BackwardBlock& b) {
  BlockStrip<T> strips[kMostStrips<T>];
  mask_block(t, w, b, strips);
  if (!b.any && !t.sets_keys && !b.sets_dq) return;
  score_block(t, w, operands, b);
  for (Index strip = 0; strip * strip_lanes<T>() < t.q_count; ++strip) {
    if (strips[strip].live.any) differentiate_strip(t, w, strips[strip]);
    b.partial |= strips[strip].live.masked;
  }
  if (b.partial) {
    clear_gaps(w, b.nj);
    find_nonfinite(t.q_count, operands.keys_are_nonfinite(b), w.nonfinite, strips, b);
  }
  operands.round(b);
  add_products(t, w, operands, b);
}

/// `count` rows of `width` as panels [panel][width][lanes side by side], times `factor`.
template <class T>
inline void pack_panels(const TypedRows<const T>& rows, Index count, Index width, T factor, Index panel, T* panels) {
  for (Index first = 0; first < count; first += panel) {
    pack_transposed<T>(rows.data + first * rows.stride, rows.stride, smaller(panel, count - first), width, factor,
        panels + first * width, panel);
  }
}

/// The rows of a tile, of numbers N: its queries from the first on, and its keys.
template <class N, class T> struct BackwardTileRows {
  const BackwardTile<T>& t;
  TypedRows<const N> q, dout, k, v;

  bool queries_are_nonfinite() const {
    return holds_nonfinite(q.data, q.stride, t.q_count, t.scores.head_dim) ||
           holds_nonfinite(dout.data, dout.stride, t.q_count, t.v_head_dim);
  }
  bool keys_are_nonfinite(const BackwardBlock& b) const {
    return holds_nonfinite(block_of(k, b), k.stride, b.nj, t.scores.head_dim);
  }
  const N* block_of(const TypedRows<const N>& rows, const BackwardBlock& b) const {
    return rows.data + (b.j0 - t.k_begin) * rows.stride;
  }
};

/// Inputs of the five products where rows are T: K, V, Q and dO in their natural rows, panels of Q^T and dO^T, P and dS
/// in place.
template <class T> struct PlainOperands : BackwardTileRows<T, T> {
  using Number = T;
  static constexpr Store kStoreScores = Store::kSet;  // the factor of scores is in the panels
  using Own = BackwardTileRows<T, T>;
  using Own::t, Own::q, Own::dout, Own::k, Own::v, Own::block_of;
  const BackwardScratch<T>& w;

  void pack() const {
    pack_panels(q, t.q_count, t.scores.head_dim, panel_factor(t.scores), w.panel, w.q_panels);
    pack_panels(dout, t.q_count, t.v_head_dim, T{1}, w.panel, w.dout_panels);
  }
  void round(const BackwardBlock&) const {}

  Product<T> score_product(const BackwardBlock& b, Index first) const {
    return panel_product(k, b, w.q_panels, first, t.scores.head_dim);
  }
  Product<T> dp_product(const BackwardBlock& b, Index first) const {
    return panel_product(v, b, w.dout_panels, first, t.v_head_dim);
  }
  Product<T> dv_product() const { return row_product(w.p, dout); }
  Product<T> dk_product() const { return row_product(w.ds, q); }
  Product<T> dq_product(const BackwardBlock& b) const {
    return {.a = w.ds,
        .a_row = 1,
        .a_depth = w.row,
        .b = block_of(k, b),
        .b_row = k.stride,
        .depth = b.nj,
        .ahead = ahead()};
  }

 private:
  Ahead* ahead() const { return has_rows(t.scores.bias) ? &w.ahead : t.ahead; }
  Product<T> panel_product(
      const TypedRows<const T>& rows, const BackwardBlock& b, const T* panels, Index first, Index width) const {
    return {.a = block_of(rows, b),
        .a_row = rows.stride,
        .a_depth = 1,
        .b = panels + first * width,
        .b_row = w.panel,
        .depth = width,
        .ahead = ahead()};
  }
  Product<T> row_product(const T* weights, const TypedRows<const T>& rows) const {
    return {.a = weights,
        .a_row = w.row,
        .a_depth = 1,
        .b = rows.data,
        .b_row = rows.stride,
        .depth = t.q_count,
        .ahead = ahead()};
  }
};

/// Loads lse and delta of the tile's queries, zeros in lanes past q_count. delta null: zeros.
template <class T> inline void load_row_numbers(const BackwardTile<T>& t, const T* delta, const BackwardScratch<T>& w) {
  for (Index i = 0; i < round_up(t.q_count, Simd<T>::kLanes); ++i) {
    const bool live = i < t.q_count;
    w.lse2_high[i] = live ? t.lse2_high[i] : T{0};
    w.lse2_low[i] = live ? t.lse2_low[i] : T{0};
    w.delta[i] = live && delta != nullptr ? delta[i] : T{0};
  }
}

/// Whether lse may be finite where q is not: a row without keys has its sink's, a cap or a callback bounds a score.
template <class T> inline bool hides_queries(const ScoreParams<T>& s) {
  return s.sink != nullptr || s.softcap > 0 || s.mod.apply != nullptr;
}

/// Backward of one tile; rows are read through `operands` only.
template <class T, class Operands>
inline void backward_tile(const BackwardTile<T>& t, BackwardScratch<T>& w, const Operands& operands) {
  operands.pack();
  load_row_numbers(t, t.delta, w);
  bool nonfinite = false;
  for (Index i = 0; i < t.q_count; ++i) {
    nonfinite |= !(w.delta[i] - w.delta[i] == 0) || !(w.lse2_high[i] - w.lse2_high[i] == 0);
  }
  // NaN or infinity in dout reaches delta, in q the lse of any row that attends a key: search the rows only then, or
  // where lse says nothing of q (hides_queries).
  w.nonfinite = (nonfinite || hides_queries(t.scores)) && operands.queries_are_nonfinite();
  const Index end = t.k_begin + t.k_count;
  const bool bias_rows = has_rows(t.scores.bias);
  if (t.ahead != nullptr) begin_ahead(t.ahead, blocks_of(t, t.k_count));
  w.ahead.lines = 0;
  if (bias_rows) fetch_bias(t, t.k_begin, smaller(t.k_begin + kBackwardBlock, end), w.ahead);
  for (Index j0 = t.k_begin; j0 < end; j0 += kBackwardBlock) {
    BackwardBlock block{j0, smaller(kBackwardBlock, end - j0), t.sets_dq && j0 == t.k_begin};
    if (bias_rows) fetch_bias(t, j0 + block.nj, smaller(j0 + block.nj + kBackwardBlock, end), w.ahead);
    backward_block(t, w, operands, block);
  }
}

template <class T> void backward(const BackwardTile<T>& t, void* scratch) {
  const Index d = t.scores.head_dim, dv = t.v_head_dim;
  const bool copies = t.q.type != stored_as<T>() || t.dout.type != stored_as<T>() || !in_one_piece<T>(t.keys);
  BackwardScratch<T> w(scratch, d, dv, copies);
  const BackwardTileRows<T, T> rows{t, rows_as<T>(t.q, 0, t.q_count, d, w.q_rows),
      rows_as<T>(t.dout, 0, t.q_count, dv, w.dout_rows),
      keys_as<T>(t.keys, t.keys.k, t.k_begin, t.k_count, d, w.k_rows),
      keys_as<T>(t.keys, t.keys.v, t.k_begin, t.k_count, dv, w.v_rows)};
  backward_tile(t, w, PlainOperands<T>{rows, w});
}

/// delta, strip by strip, in the order in which backward sums dout . v, so that dP - delta of a row with one key is 0.
/// pack(rows, first, count, panel) packs rows of a strip as [words][strip].
template <class N, class T, class Word, class Pack>
inline void delta_strips(const DeltaRows<T>& t, Word* out, Word* dout, const Pack& pack) {
  constexpr Index n = Simd<T>::kLanes, strip = strip_lanes<T>(), numbers = Terms<N>::kNumbers;
  for (Index first = 0; first < t.count; first += strip) {
    const Index ni = smaller(strip, t.count - first);
    pack(t.out, first, ni, out);
    pack(t.dout, first, ni, dout);
    for (Index lane = 0; lane < ni; lane += n) {
      Chain<N> chain;
      for (Index d = 0, at = lane; d < t.v_head_dim; d += numbers, at += strip) {
        chain.add(d, Terms<N>::load_b(out + at), Terms<N>::load_b(dout + at));
      }
      store_tail<T>(t.delta + first + lane, chain.total(), static_cast<int>(smaller(n, ni - lane)));
    }
  }
}

template <class T> void delta_rows(const DeltaRows<T>& t, void* scratch) {
  const bool copies = t.out.type != stored_as<T>() || t.dout.type != stored_as<T>();
  const BackwardScratch<T> w(scratch, t.v_head_dim, t.v_head_dim, copies);
  const auto pack = [&](const Rows& rows, Index first, Index count, T* panel) __attribute__((noinline, flatten)) {
    const TypedRows<const T> own = rows_as<T>(rows, first, count, t.v_head_dim, w.q_rows);
    pack_strips(own.data, own.stride, 0, count, t.v_head_dim, T{1}, panel);
  };
  delta_strips<T>(t, w.q_panels, w.dout_panels, pack);
}

/// to[r][c] (+)= sums[r][c], rounded once; rows of sums follow each other.
inline void round_rows(const float* sums, Index rows, Index columns, const Rows& to, bool add) {
  constexpr int n = Simd<float>::kLanes;
  const auto round = [&](auto stored) {
    auto* row = reinterpret_cast<decltype(stored)*>(to.data);
    if (!add) {
      narrow_rows(sums, rows, columns, row, to.stride);
      return;
    }
    for (Index r = 0; r < rows; ++r, row += to.stride) {
      for (Index c = 0; c < columns; c += n) {
        const int width = static_cast<int>(smaller<Index>(n, columns - c));
        const F32 more = load_tail<float>(sums + r * columns + c, width);
        store_narrowed_tail(row + c, load_widened_tail(row + c, width) + more, width);
      }
    }
  };
  to.type == StoredType::kBF16 ? round(BFloat16{}) : round(Float16{});
}

}  // namespace
}  // namespace qkv
