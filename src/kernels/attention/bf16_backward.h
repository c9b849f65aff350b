// Backward attention on products of bf16 pairs. P and dS are computed in float and rounded to bf16 once per block,
// before their products; every sum is float. Pairs lie along the axis that a product sums over:
//   S^T = K Q^T, dP^T = V dO^T   along D and Dv: K and V in their natural rows, panels of Q^T and dO^T in pairs
//   dV = P^T dO, dK = dS^T Q     along queries: rows of P^T and dS^T, two rows of dO and of Q paired up
//   dQ = dS K                    along keys: two rows of dS^T, two rows of K paired up; for tiles rows of dS
#pragma once

#include "kernels/attention/backward.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct Bf16BackwardScratch {
  BackwardScratch<float> tile;  // its panels hold pairs
  Carver carver;
  static constexpr Index kKeyPairs = kBackwardBlock / 2;
  // [query_tile / 2][D]: two rows paired up
  std::uint32_t* q = carver.array<std::uint32_t>(tile.width / 2 * tile.head_dim);
  std::uint32_t* dout = carver.array<std::uint32_t>(tile.width / 2 * tile.v_head_dim);  // [query_tile / 2][Dv]
  std::uint32_t* k = carver.array<std::uint32_t>(kKeyPairs * tile.head_dim);  // [kKeyPairs][D]: the block's keys
  BFloat16* p_rows = carver.array<BFloat16>(kBackwardBlock * tile.row);       // [kBackwardBlock][tile.row]
  BFloat16* ds_rows = carver.array<BFloat16>(kBackwardBlock * tile.row);      // [kBackwardBlock][tile.row]
  // [kKeyPairs][tile.row]; for AMX tiles [tile.width][kKeyPairs]
  std::uint32_t* ds_pairs = carver.array<std::uint32_t>(kKeyPairs * tile.row);
  PairStrides ds_strides = Terms<BFloat16>::kAmxTiles ? PairStrides{1, kKeyPairs} : PairStrides{tile.row, 1};
  std::size_t bytes = carver.used();

  Bf16BackwardScratch(void* base, Index d, Index dv)
      : tile(base, d, dv, widened_query_tile<float>(d, dv)), carver(base, tile.bytes) {}

  std::uint32_t* q_panels() const { return reinterpret_cast<std::uint32_t*>(tile.q_panels); }
  std::uint32_t* dout_panels() const { return reinterpret_cast<std::uint32_t*>(tile.dout_panels); }
};

/// Inputs of the five products of a tile.
struct Bf16Operands : BackwardTileRows<BFloat16, float> {
  using Number = BFloat16;
  static constexpr Store kStoreScores = Store::kScale;  // panels hold Q as stored; the sum is scaled
  using Typed = TypedRows<const BFloat16>;
  const Bf16BackwardScratch& w;

  void pack() const {
    pack_rows(q, t.scores.head_dim, w.q_panels(), t.dk == nullptr ? nullptr : w.q);
    pack_rows(dout, t.v_head_dim, w.dout_panels(), t.dv == nullptr ? nullptr : w.dout);
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
    pair_up_rows(block_of(k, b), k.stride, b.nj, t.scores.head_dim, t.scores.head_dim, w.k);
    for (int vector = 0; vector * kLanes < t.q_count; ++vector) {
      const Span keys = spans.vector_keys[vector];
      if (keys.empty()) continue;
      if constexpr (Terms<BFloat16>::kAmxTiles) {
        round_pairs_of_lanes(w.tile.ds, w.tile.row, keys.begin, keys.end, vector, w.ds_strides.column, w.ds_pairs);
      } else {
        round_pairs_of_rows(w.tile.ds, w.tile.row, keys.begin, keys.end, vector, 1, w.ds_pairs);
      }
    }
  }

  Product<BFloat16> score_product(const BackwardBlock& b, Index first) const {
    return panel_product(k, b, w.q_panels(), first, t.scores.head_dim);
  }
  Product<BFloat16> dp_product(const BackwardBlock& b, Index first) const {
    return panel_product(v, b, w.dout_panels(), first, t.v_head_dim);
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
  void pack_rows(const Typed& rows, Index width, std::uint32_t* panels, std::uint32_t* pairs) const {
    pack_pairs(rows.data, rows.stride, t.q_count, width, w.tile.panel, panels);
    if (pairs != nullptr) pair_up_rows(rows.data, rows.stride, t.q_count, width, width, pairs);
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

  Product<BFloat16> panel_product(
      const Typed& rows, const BackwardBlock& b, const std::uint32_t* panels, Index first, Index width) const {
    return {.a = block_of(rows, b),
        .a_row = rows.stride,
        .a_depth = 2,
        .b = panels + first * pairs_of(width),
        .b_row = w.tile.panel,
        .depth = width};
  }
  Product<BFloat16> row_product(const BFloat16* weights, const std::uint32_t* rows, Index width) const {
    return {.a = weights, .a_row = w.tile.row, .a_depth = 2, .b = rows, .b_row = width, .depth = t.q_count};
  }
};

void backward_bf16(const BackwardTile<float>& t, void* scratch) {
  const Index d = t.scores.head_dim, dv = t.v_head_dim;
  Bf16BackwardScratch w(scratch, d, dv);
  BFloat16* const none = nullptr;  // rows are bf16, keys one page
  const BackwardTileRows<BFloat16, float> rows{t, rows_as<BFloat16>(t.q, 0, t.q_count, d, none),
      rows_as<BFloat16>(t.dout, 0, t.q_count, dv, none),
      {chunk_in_place<BFloat16>(t.keys, t.keys.k, t.k_begin, t.k_count), t.keys.k.row_stride},
      {chunk_in_place<BFloat16>(t.keys, t.keys.v, t.k_begin, t.k_count), t.keys.v.row_stride}};
  backward_tile(t, w.tile, Bf16Operands{rows, w});
}

void delta_rows_bf16(const DeltaRows<float>& t, void* scratch) {
  const Bf16BackwardScratch w(scratch, t.v_head_dim, t.v_head_dim);
  const auto pack = [&](const Rows& rows, Index first, Index count, std::uint32_t* panel) {
    const auto own = rows_as<BFloat16>(rows, first, count, t.v_head_dim, static_cast<BFloat16*>(nullptr));
    pack_pairs(own.data, own.stride, count, t.v_head_dim, strip_lanes<float>(), panel);
  };
  delta_strips<BFloat16>(t, w.q_panels(), w.dout_panels(), pack);
}

}  // namespace
}  // namespace qkv
#endif
