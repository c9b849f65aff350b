// Parameters of forward's kernels, filled from a problem and the outputs of a call, and what is left to do with what
// they return.
#pragma once

#include <algorithm>
#include <limits>

#include "attention/call/empty_rows.h"

namespace qkv::inline v0 {

/// A query tile of head h of sequence b.
struct TileAt {
  Index b, h, t;
};
/// Queries [i, i + count) of heads [h, h + heads) of sequence b, counted among those that are here.
struct RowsAt {
  Index b, h, heads, i, count;
};

/// numbers(b, h, i + n) = from[n]; nothing where they are null.
template <class Sum>
void write_numbers(const AnyView& numbers, Index b, Index h, Index i, Index count, const Sum* from) {
  if (numbers.data == nullptr) return;
  for (Index n = 0; n < count; ++n) *numbers.as<Sum>(b, h, i + n) = from[n];
}

/// row_lse, row_low: [queries of a tile].
template <class Sum>
ForwardTile<Sum> fill_tile(const Problem& p, const Outputs& to, const TileAt& at, Sum* row_lse, Sum* row_low) {
  ForwardTile<Sum> tile = p.forward_tile<Sum>(at.b, at.h, p.tile(at.t));
  const Index first = tile.q_begin - p.first_query;
  tile.out = rows_at(to.out, at.b, at.h, first);
  tile.lse = row_lse;
  tile.lse_low = to.lse_low.data == nullptr ? nullptr : row_low;
  tile.weights = to.weights.as<Sum>(at.b, at.h, first);
  tile.weights_row_stride = to.weights.stride(2);
  tile.kind = static_cast<Weights>(to.kind);
  return tile;
}

/// Rows without keys, keys that only longer sequences have, and lse.
template <class Sum>
void finish_tile(const Problem& p, const Outputs& to, const TileAt& at, const ForwardTile<Sum>& tile) {
  const Index q_begin = tile.q_begin, q_count = tile.q_count, first = q_begin - p.first_query;
  if (p.rows_can_be_empty()) {
    if (tile.out.data != nullptr) fill_empty_out(p, p.keys.v, at.b, at.h, q_begin, q_count, tile.lse, tile.out);
    if (tile.weights != nullptr && tile.kind != Weights::kScores) {
      fill_empty_weights(p, at.b, at.h, q_begin, q_count, tile.lse, tile.kind == Weights::kApplied, tile.weights,
          tile.weights_row_stride);
    }
  }
  if (const Index length = p.length(at.b); tile.weights != nullptr && length < p.kv_len) {
    const Sum none = tile.kind == Weights::kScores ? -std::numeric_limits<Sum>::infinity() : Sum{0};
    for (Index i = 0; i < q_count; ++i) {
      std::fill(tile.weights + i * tile.weights_row_stride + length,
          tile.weights + i * tile.weights_row_stride + p.kv_len, none);
    }
  }
  write_numbers(to.lse, at.b, at.h, first, q_count, tile.lse);
  write_numbers(to.lse_low, at.b, at.h, first, q_count, tile.lse_low);
}

/// Decode's rows, against keys of which the mask says more. row_lse: [heads * count].
template <class Sum>
DecodeGroup<Sum> fill_group(const Problem& p, const Outputs& to, const RowsAt& at, const HeadKeys& keys, Sum* row_lse) {
  return {.scores = p.scores<Sum>(at.b, at.h),
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
template <class Sum> void finish_rows(const Problem& p, const Outputs& to, const RowsAt& at, const Sum* row_lse) {
  for (Index n = 0; n < at.heads; ++n, row_lse += at.count) {
    const Index h = at.h + n;
    if (p.rows_can_be_empty()) {
      fill_empty_out(p, p.keys.v, at.b, h, p.first_query + at.i, at.count, row_lse, rows_at(to.out, at.b, h, at.i));
    }
    write_numbers(to.lse, at.b, h, at.i, at.count, row_lse);
    for (Index i = 0; i < at.count && to.lse_low.data != nullptr; ++i) {
      *to.lse_low.as<Sum>(at.b, h, at.i + i) = std::numeric_limits<Sum>::quiet_NaN();
    }
  }
}

/// A query's rows of many heads that share a list, as the rows of one tile; the mask hides none of the keys.
template <class Sum> ForwardTile<Sum> fill_listed_tile(
    const Problem& p, const Outputs& to, const RowsAt& at, const HeadKeys& keys, Sum* row_lse) {
  ForwardTile<Sum> tile = p.forward_tile<Sum>(at.b, at.h, {p.first_query + at.i, p.first_query + at.i + at.heads});
  tile.scores.mask = {};
  tile.scores.kv_len = keys.held.end;
  tile.q.stride = p.q.stride(1);
  tile.keys = keys;
  tile.out = rows_at(to.out, at.b, at.h, at.i);
  tile.out.stride = to.out.stride(1);
  tile.lse = row_lse;
  return tile;
}

}  // namespace qkv::inline v0
