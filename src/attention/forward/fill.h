// What forward's kernels are passed, filled from a problem and the outputs of a call, and what is left to do with what they
// return.
#pragma once

#include <algorithm>
#include <limits>

#include "attention/call/empty_rows.h"
#include "attention/call/problem.h"

namespace qkv::inline v0 {

/// A query tile of head h of sequence b.
struct TileAt {
  Index b, h, t;
};
/// Queries [i, i + count) of heads [h, h + heads) of sequence b, counted among those that are here.
struct RowsAt {
  Index b, h, heads, i, count;
};

/// Rows of head h of sequence b from row `first` on; null stays null.
template <class E>
E* rows_from(const View<E, 4>& x, Index b, Index h, Index first) {
  return x.data() == nullptr ? nullptr : x.data() + b * x.stride(0) + h * x.stride(1) + first * x.stride(2);
}

/// row_lse, row_low: [queries of a tile].
template <class T>
ForwardTile<Accumulator<T>> fill_tile(const Problem<T>& p, const AttentionOutputs<T>& to, const TileAt& at,
                                      Accumulator<T>* row_lse, Accumulator<T>* row_low) {
  const Positions queries = p.tile(at.t);
  const Index first = queries.begin - p.first_query;
  return {.scores = p.scores(at.b, at.h),
          .q = rows_at(p.q, at.b, at.h, first),
          .keys = p.keys(at.b, at.h / p.group_size()),
          .out = rows_at(to.out, at.b, at.h, first),
          .v_head_dim = p.v_head_dim,
          .q_begin = queries.begin,
          .q_count = queries.end - queries.begin,
          .lse = row_lse,
          .lse_low = to.lse_low.data() == nullptr ? nullptr : row_low,
          .row_max2 = nullptr,
          .row_sum = nullptr,
          .weights = rows_from(to.weights, at.b, at.h, first),
          .weights_row_stride = to.weights.stride(2),
          .weights_column_stride = to.weights.stride(3),
          .kind = static_cast<Weights>(to.kind),
          .exponentials = nullptr,
          .chunk_shifts = nullptr,
          .ahead = nullptr};
}

/// Rows without keys, and lse.
template <class T>
void finish_tile(const Problem<T>& p, const AttentionOutputs<T>& to, const TileAt& at,
                 const ForwardTile<Accumulator<T>>& tile) {
  const Index q_begin = tile.q_begin, q_count = tile.q_count, first = q_begin - p.first_query;
  if (p.rows_can_be_empty()) {
    T* const out = rows_from(to.out, at.b, at.h, first);
    if (out != nullptr) fill_empty_out(p, at.b, at.h, q_begin, q_count, tile.lse, out, to.out.stride(2));
    if (tile.weights != nullptr && tile.kind != Weights::kScores) {
      fill_empty_weights(p, at.b, at.h, q_begin, q_count, tile.lse, tile.kind == Weights::kApplied, tile.weights,
                         tile.weights_row_stride);
    }
  }
  for (Index i = 0; i < q_count && to.lse.data() != nullptr; ++i) to.lse(at.b, at.h, first + i) = tile.lse[i];
  for (Index i = 0; i < q_count && to.lse_low.data() != nullptr; ++i) to.lse_low(at.b, at.h, first + i) = tile.lse_low[i];
}

/// Decode's rows, against keys of which the mask says more. row_lse: [heads * count].
template <class T>
DecodeGroup<Accumulator<T>> fill_group(const Problem<T>& p, const AttentionOutputs<T>& to, const RowsAt& at, const HeadKeys& keys,
                                       Accumulator<T>* row_lse) {
  return {.scores = p.scores(at.b, at.h),
          .keys = keys,
          .q = rows_at(p.q, at.b, at.h, at.i),
          .out = rows_at(to.out, at.b, at.h, at.i),
          .q_head_stride = p.q.stride(1),
          .out_head_stride = to.out.stride(1),
          .q_len = at.count,
          .group_size = at.heads,
          .v_head_dim = p.v_head_dim,
          .lse = row_lse,
          .bias_head_stride = p.bias.is_null() ? p.position.head_stride : repeat_stride(p.bias, 1),
          .position_head_stride = p.position.head_stride,
          .mask_differs = false};
}

/// Rows of decode or of listed keys. Rows without keys, and lse; lse_low is not known.
template <class T>
void finish_rows(const Problem<T>& p, const AttentionOutputs<T>& to, const RowsAt& at, const Accumulator<T>* row_lse) {
  for (Index n = 0; n < at.heads; ++n, row_lse += at.count) {
    const Index h = at.h + n;
    if (p.rows_can_be_empty()) {
      fill_empty_out(p, at.b, h, p.first_query + at.i, at.count, row_lse, rows_from(to.out, at.b, h, at.i), to.out.stride(2));
    }
    for (Index i = 0; i < at.count; ++i) {
      if (to.lse.data() != nullptr) to.lse(at.b, h, at.i + i) = row_lse[i];
      if (to.lse_low.data() != nullptr) {
        to.lse_low(at.b, h, at.i + i) = std::numeric_limits<Accumulator<T>>::quiet_NaN();
      }
    }
  }
}

/// A query's rows of many heads that share a list, as the rows of one tile; the mask hides none of the keys.
template <class T>
ForwardTile<Accumulator<T>> fill_listed_tile(const Problem<T>& p, const AttentionOutputs<T>& to, const RowsAt& at,
                                             const HeadKeys& keys, Accumulator<T>* row_lse) {
  ForwardTile<Accumulator<T>> tile{};
  tile.scores = p.scores(at.b, at.h);
  tile.scores.mask = {};
  tile.scores.kv_len = keys.held.end;
  tile.q = rows_at(p.q, at.b, at.h, at.i);
  tile.q.stride = p.q.stride(1);
  tile.keys = keys;
  tile.out = rows_at(to.out, at.b, at.h, at.i);
  tile.out.stride = to.out.stride(1);
  tile.v_head_dim = p.v_head_dim;
  tile.q_count = at.heads;
  tile.lse = row_lse;
  return tile;
}

}  // namespace qkv::inline v0
