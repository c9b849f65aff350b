// Backward attention on products of bf16 pairs. P and dS are computed in float and rounded to bf16 once per block, before their
// products; every sum is float. Pairs lie along the axis that a product sums over:
//   S^T = K Q^T, dP^T = V dO^T   along D and Dv: K and V in their natural rows, panels of Q^T and dO^T in pairs
//   dV = P^T dO, dK = dS^T Q     along queries: rows of P^T and dS^T, two rows of dO and of Q paired up
//   dQ = dS K                    along keys: two rows of dS^T, two rows of K paired up; for tiles rows of dS
// Not: the walk over blocks, masks, softmax (backward.h, differentiate.h); forward (bf16_forward.h).
#pragma once

#include "kernels/attention/widened_rows.h"
#include "kernels/products/bf16_terms.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct Bf16BackwardScratch {
  BackwardScratch<float> tile;  // its panels hold pairs
  Carver carver;
  static constexpr Index kKeyPairs = kBackwardBlock / 2;
  std::uint32_t* q = carver.take<std::uint32_t>(tile.width / 2 * tile.head_dim);  // [query_tile / 2][D]: two rows paired up
  std::uint32_t* dout = carver.take<std::uint32_t>(tile.width / 2 * tile.v_head_dim);  // [query_tile / 2][Dv]
  std::uint32_t* k = carver.take<std::uint32_t>(kKeyPairs * tile.head_dim);            // [kKeyPairs][D]: the block's keys
  BFloat16* p_rows = carver.take<BFloat16>(kBackwardBlock * tile.row);                 // [kBackwardBlock][tile.row]
  BFloat16* ds_rows = carver.take<BFloat16>(kBackwardBlock * tile.row);                // [kBackwardBlock][tile.row]
  // [kKeyPairs][tile.row]; for AMX tiles [tile.width][kKeyPairs]
  std::uint32_t* ds_pairs = carver.take<std::uint32_t>(kKeyPairs * tile.row);
  PairStrides ds_strides = Terms<BFloat16>::kAmxTiles ? PairStrides{1, kKeyPairs} : PairStrides{tile.row, 1};
  std::size_t bytes = carver.used();

  Bf16BackwardScratch(void* base, Index d, Index dv) : tile(base, d, dv, widened_query_tile(d, dv)), carver(base, tile.bytes) {}

  std::uint32_t* q_panels() const { return reinterpret_cast<std::uint32_t*>(tile.q_panels); }
  std::uint32_t* dout_panels() const { return reinterpret_cast<std::uint32_t*>(tile.dout_panels); }
};

/// What the five products of a tile read.
struct Bf16Operands {
  using Number = BFloat16;
  static constexpr Store kStoreScores = Store::kScale;  // panels hold Q as stored; the sum is scaled
  const BackwardTile<BFloat16>& t;
  const Bf16BackwardScratch& w;

  void pack() const {
    const TileScores<BFloat16>& s = t.scores;
    pack_rows(s.q, s.q_stride, s.head_dim, w.q_panels(), t.dk == nullptr ? nullptr : w.q);
    pack_rows(t.dout, t.dout_stride, t.v_head_dim, w.dout_panels(), t.dv == nullptr ? nullptr : w.dout);
  }
  bool queries_are_nonfinite() const {
    const TileScores<BFloat16>& s = t.scores;
    return holds_nonfinite(s.q + t.q_begin * s.q_stride, s.q_stride, t.q_count, s.head_dim) ||
           holds_nonfinite(t.dout + t.q_begin * t.dout_stride, t.dout_stride, t.q_count, t.v_head_dim);
  }
  bool keys_are_nonfinite(const BackwardBlock& b) const {
    return holds_nonfinite(t.scores.k + b.j0 * t.scores.k_stride, t.scores.k_stride, b.nj, t.scores.head_dim);
  }

  /// Rounds P and dS where the products read them.
  void round(const BackwardBlock& b) const {
    const BlockSpans& spans = w.tile.spans;
    for (Index j = 0; j < b.nj; j += kGroup) {
      const Span queries = spans.queries_of[j / kGroup];
      for (Index key = j; key < smaller(b.nj, j + kGroup); ++key) {
        if (t.dv != nullptr) round_row(w.tile.p, key, queries, w.p_rows);
        if (t.dk != nullptr) round_row(w.tile.ds, key, queries, w.ds_rows);
      }
    }
    if (t.dq == nullptr) return;
    pair_up_rows(t.scores.k + b.j0 * t.scores.k_stride, t.scores.k_stride, b.nj, t.scores.head_dim, t.scores.head_dim, w.k);
    for (int v = 0; v * kLanes < t.q_count; ++v) {
      const Span keys = spans.vector_keys[v];
      if (keys.empty()) continue;
      if constexpr (Terms<BFloat16>::kAmxTiles) {
        round_pairs_of_lanes(w.tile.ds, w.tile.row, keys.begin, keys.end, v, w.ds_strides.column, w.ds_pairs);
      } else {
        round_pairs_of_rows(w.tile.ds, w.tile.row, keys.begin, keys.end, v, 1, w.ds_pairs);
      }
    }
  }

  Product<BFloat16> score_product(const BackwardBlock& b, Index first) const {
    return panel_product(t.scores.k, t.scores.k_stride, b, w.q_panels(), first, t.scores.head_dim);
  }
  Product<BFloat16> dp_product(const BackwardBlock& b, Index first) const {
    return panel_product(t.v, t.v_stride, b, w.dout_panels(), first, t.v_head_dim);
  }
  Product<BFloat16> dv_product() const { return row_product(w.p_rows, w.dout, t.v_head_dim); }
  Product<BFloat16> dk_product() const { return row_product(w.ds_rows, w.q, t.scores.head_dim); }
  Product<BFloat16> dq_product(const BackwardBlock& b) const {
    return {.a = reinterpret_cast<const BFloat16*>(w.ds_pairs),
            .a_row = 2 * w.ds_strides.column,
            .a_depth = 2 * w.ds_strides.pair,
            .b = w.k,
            .b_row = t.scores.head_dim,
            .depth = b.nj};
  }

 private:
  static constexpr int kLanes = Simd<float>::kLanes;

  /// Panels of the tile's rows transposed, in pairs along `width`; and the rows paired up, where `pairs` is not null.
  void pack_rows(const BFloat16* rows, Index stride, Index width, std::uint32_t* panels, std::uint32_t* pairs) const {
    rows += t.q_begin * stride;
    pack_pairs(rows, stride, t.q_count, width, w.tile.panel, panels);
    if (pairs != nullptr) pair_up_rows(rows, stride, t.q_count, width, width, pairs);
  }

  /// Row `key` rounded where `queries` see it, two vectors at a time; 0 in one that holds none of them.
  void round_row(const float* rows, Index key, Span queries, BFloat16* rounded) const {
    for (Index i = queries.begin / (2 * kLanes) * (2 * kLanes); i < queries.end; i += 2 * kLanes) {
      const float* from = rows + key * w.tile.row + i;
      const Index middle = i + kLanes;
      const U32 pairs = round_in_order(queries.begin < middle ? load<float>(from) : F32{},
                                       queries.end > middle ? load<float>(from + kLanes) : F32{});
      __builtin_memcpy(static_cast<void*>(rounded + key * w.tile.row + i), &pairs, sizeof pairs);
    }
  }

  Product<BFloat16> panel_product(const BFloat16* rows, Index stride, const BackwardBlock& b, const std::uint32_t* panels,
                                  Index first, Index width) const {
    return {.a = rows + b.j0 * stride,
            .a_row = stride,
            .a_depth = 2,
            .b = panels + first * pairs_of(width),
            .b_row = w.tile.panel,
            .depth = width};
  }
  Product<BFloat16> row_product(const BFloat16* weights, const std::uint32_t* rows, Index width) const {
    return {.a = weights, .a_row = w.tile.row, .a_depth = 2, .b = rows, .b_row = width, .depth = t.q_count};
  }
};

void backward_bf16(const BackwardTile<BFloat16>& t, void* scratch) {
  Bf16BackwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  backward_tile(float_backward(t), w.tile, Bf16Operands{t, w});
}

/// In the order in which backward sums dout . v, so that dP - delta of a row with one key is 0.
void delta_rows_bf16(const DeltaRows<BFloat16>& t, void* scratch) {
  constexpr int n = Simd<float>::kLanes;
  const Bf16BackwardScratch w(scratch, t.v_head_dim, t.v_head_dim);
  const auto pack = [&](const BFloat16* rows, Index stride, Index i0, Index ni, std::uint32_t* panel) {
    pack_pairs(rows + i0 * stride, stride, ni, t.v_head_dim, strip_lanes<float>(), panel);
  };
  for (Index i0 = t.q_begin; i0 < t.q_begin + t.q_count; i0 += strip_lanes<float>()) {
    const Index ni = smaller<Index>(strip_lanes<float>(), t.q_begin + t.q_count - i0);
    pack(t.out, t.out_stride, i0, ni, w.q_panels());
    pack(t.dout, t.dout_stride, i0, ni, w.dout_panels());
    for (int v = 0; v * n < ni; ++v) {
      Chain<BFloat16> chain;
      for (Index pair = 0; pair < pairs_of(t.v_head_dim); ++pair) {
        const Index place = pair * strip_lanes<float>() + v * n;
        chain.add(2 * pair, load_u32(w.q_panels() + place), load_u32(w.dout_panels() + place));
      }
      store_tail<float>(t.delta + i0 + v * n, chain.total(), static_cast<int>(smaller<Index>(n, ni - v * n)));
    }
  }
}

}  // namespace
}  // namespace qkv
#endif
