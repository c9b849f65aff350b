// One call of second order, as its work items see it. First the rows: an item is a query tile of one head and makes tout, tlse,
// the row sums, gq and its part of gbias. Then the keys: an item is a key range of one key/value head and makes gk and gv from
// all query heads of the group, in their order. Each output element belongs to one item, except of a gbias that repeats: there
// items add in turn (turns.h). So bits do not depend on threads. Not: checks and scratch (second.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/bias_gradient.h"
#include "attention/empty_rows.h"
#include "attention/problem.h"
#include "attention/row_lse.h"
#include "attention/turns.h"
#include "dispatch/kernels.h"
#include "qkv/derivatives.h"

namespace qkv {
inline namespace v0 {

template <class T>
struct SecondJob {
  const Problem<T>& p;
  const SecondOrderKernels<T>& kernels;
  const AttentionTangents<T>& tangents;
  View<const T, 4> out;   // null in forward mode, as dout
  View<const T, 3> lse;   // [B, H, Tq]
  View<const T, 4> dout;  // [B, H, Tq, Dv]
  View<T, 4> tout;        // null: not wanted
  View<T, 3> tlse;        // null: not wanted
  const AttentionSecondGradients<T>& gradients;
  BiasGradient<T> bias;
  const T* position_rates = nullptr;  // tangent of the position bias at distance 0 of head 0, as PositionVectors; null: none
  // Shared scratch: five numbers a row, [B, H, Tq] each; a turn for each query tile and two more.
  T *lse2_high = nullptr, *lse2_low = nullptr, *delta = nullptr, *mean = nullptr, *moment = nullptr;
  Turn* turns = nullptr;
  std::byte* scratch = nullptr;  // workers x (kernel scratch + private gbias + private gposition_bias)
  std::size_t kernel_bytes = 0, bias_bytes = 0, worker_bytes = 0;

  void* kernel_scratch(int worker) const { return scratch + static_cast<std::size_t>(worker) * worker_bytes; }
  T* private_bias(int worker) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(kernel_scratch(worker)) + kernel_bytes);
  }
  /// Sums by the rows of the table, then by the diagonals of one query tile and all keys.
  T* private_position(int worker) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(kernel_scratch(worker)) + kernel_bytes + bias_bytes);
  }
  bool moves_position() const { return gradients.gposition_bias.data() != nullptr && p.position.zero != nullptr; }
  Index row_items() const { return p.batch * p.num_heads * p.query_tiles(); }
  Index key_items() const {
    const bool wanted = gradients.gk.data() != nullptr || gradients.gv.data() != nullptr;
    return wanted ? p.key_ranges() * p.batch * p.num_kv_heads : 0;
  }

  /// Everything but the range of queries and keys, and what is written to.
  SecondOrderTile<T> tile_of(Index b, Index h) const {
    const Index g = h / p.group_size(), first_row = (b * p.num_heads + h) * p.q_len;
    const auto at = [b](const auto& view, Index head) {
      return view.data() == nullptr ? nullptr : view.data() + b * view.stride(0) + head * view.stride(1);
    };
    SecondOrderTile<T> tile{};
    tile.first.scores = p.scores(b, h);
    tile.first.v = at(p.v, g);
    tile.first.v_stride = p.v.stride(2);
    tile.first.v_head_dim = p.v_head_dim;
    tile.first.dout = at(dout, h);
    tile.first.dout_stride = dout.stride(2);
    tile.first.lse2_high = lse2_high + first_row;
    tile.first.lse2_low = lse2_low + first_row;
    tile.first.delta = delta + first_row;
    tile.tangents = {at(tangents.q, h),
                     at(tangents.k, g),
                     at(tangents.v, g),
                     tangents.q.stride(2),
                     tangents.k.stride(2),
                     tangents.v.stride(2),
                     {},
                     nullptr};
    if (tangents.bias.data() != nullptr) {
      const View<const T, 4>& rates = tangents.bias;
      tile.tangents.bias = {rates.data() + b * repeat_stride(rates, 0) + h * repeat_stride(rates, 1), repeat_stride(rates, 2),
                            repeat_stride(rates, 3)};
    }
    if (position_rates != nullptr) {
      const T* by_distance = position_rates + h * p.position.head_stride - position_offset(*p.position_bias, p.q_len, p.kv_len);
      if (tile.tangents.bias.data == nullptr) {
        tile.tangents.bias = {by_distance, -1, 1};
      } else {
        tile.tangents.position = by_distance;
      }
    }
    if (tangents.sinks.data() != nullptr) tile.sink_tangent = tangents.sinks(h);
    tile.mean = mean + first_row;
    tile.moment = moment + first_row;
    return tile;
  }

  /// lse2 and, where there is a dout, delta of a tile's queries.
  void prepare(const SecondOrderTile<T>& tile, Index b, Index h, int worker) const {
    const BackwardTile<T>& f = tile.first;
    const Index first_row = (b * p.num_heads + h) * p.q_len;
    split_lse(p, lse, b, h, f.q_begin, f.q_count, lse2_high + first_row, lse2_low + first_row, kernel_scratch(worker));
    if (f.dout == nullptr) return;
    const DeltaRows<T> rows{.dout = f.dout,
                            .out = out.data() + b * out.stride(0) + h * out.stride(1),
                            .dout_stride = f.dout_stride,
                            .out_stride = out.stride(2),
                            .v_head_dim = p.v_head_dim,
                            .q_begin = f.q_begin,
                            .q_count = f.q_count,
                            .delta = delta + first_row};
    p.kernels->delta(rows, kernel_scratch(worker));
    if (gradients.dlse.data() == nullptr) return;
    for (Index i = f.q_begin; i < f.q_begin + f.q_count; ++i) rows.delta[i] -= gradients.dlse(b, h, i);
  }

  /// tout of rows without a key: out with tv in the place of v.
  void fill_empty(const SecondOrderTile<T>& tile, Index b, Index h) const {
    const bool nan = p.empty_row == EmptyRow::kNaN;
    if (tile.tout == nullptr || !p.rows_can_be_empty() || (tangents.v.data() == nullptr && !nan)) return;
    Problem<T> moved = p;
    moved.v = tangents.v;
    T row_lse[kMaxQueryTile];
    for (Index i = 0; i < tile.first.q_count; ++i) row_lse[i] = lse(b, h, tile.first.q_begin + i);
    fill_empty_out(moved, b, h, tile.first.q_begin, tile.first.q_count, row_lse, tile.tout, tile.tout_stride);
  }

  /// gsinks[h] = sum over b and i of w_sink ((rate - mean) (0 - delta) - moment), every row's part in one order.
  void add_sink_gradient() const {
    for (Index h = 0; h < p.num_heads; ++h) {
      const double sink2 = static_cast<double>(p.sinks(h)) * std::numbers::log2e;
      const double rate = tangents.sinks.data() == nullptr ? 0 : static_cast<double>(tangents.sinks(h));
      double sum = 0;
      for (Index b = 0; b < p.batch; ++b) {
        for (Index row = (b * p.num_heads + h) * p.q_len, end = row + p.q_len; row < end; ++row) {
          const double weight = std::exp2(sink2 - static_cast<double>(lse2_high[row]) - static_cast<double>(lse2_low[row]));
          const double e = (static_cast<double>(mean[row]) - rate) * static_cast<double>(delta[row]);
          sum += weight == 0 ? 0 : weight * (e - static_cast<double>(moment[row]));
        }
      }
      gradients.gsinks(h) = static_cast<T>(sum);
    }
  }

  /// From the diagonals of a tile to the rows of the table, and in the item's turn to the caller's.
  void add_position_gradient(const SecondOrderTile<T>& tile, Index h, Index item, T* own) const {
    const View<T, 2>& table = gradients.gposition_bias;
    const Index last = tile.first.q_begin + tile.first.q_count - 1,
                offset = position_offset(*p.position_bias, p.q_len, p.kv_len);
    std::fill_n(own, table.size(0), T{});
    for (Index n = 0; n < p.kv_len + tile.first.q_count - 1; ++n) {
      const Index distance = n - last - offset;
      own[p.position.rows[distance]] += static_cast<T>(p.position_bias->factor(distance)) * own[table.size(0) + n];
    }
    Turn& turn = turns[p.query_tiles() + 1];
    wait_for_turn(turn, item);
    for (Index row = 0; row < table.size(0); ++row) table(row, h) += own[row];
    pass_turn(turn, item);
  }

  static void clear_rows(T* rows, Index stride, Index width, Index begin, Index count) {
    if (rows == nullptr) return;
    for (Index i = begin; i < begin + count; ++i) std::fill_n(rows + i * stride, width, T{});
  }

  /// A query tile of one head.
  void run_rows(Index item, int worker) const {
    const Index tiles = p.query_tiles(), head = item / tiles, b = head / p.num_heads, h = head % p.num_heads;
    const Index t = tiles - 1 - item % tiles;  // late queries first: under causal they cost most
    SecondOrderTile<T> tile = tile_of(b, h);
    BackwardTile<T>& f = tile.first;
    f.q_begin = t * p.query_tile;
    f.q_count = std::min(p.query_tile, p.q_len - f.q_begin);
    if (tout.data() != nullptr) tile.tout = &tout(b, h, 0, 0);
    tile.tout_stride = tout.stride(2);
    if (gradients.gq.data() != nullptr) f.dq = &gradients.gq(b, h, 0, 0);
    f.dq_stride = gradients.gq.stride(2);
    clear_rows(tile.tout, tile.tout_stride, p.v_head_dim, f.q_begin, f.q_count);
    clear_rows(f.dq, f.dq_stride, p.head_dim, f.q_begin, f.q_count);
    const Index turn = bias.over_queries ? p.query_tiles() : t, number = bias.over_queries ? item : head;
    if (bias.wanted()) {
      f.dbias = bias.over_queries ? private_bias(worker) : bias.head(b, h);
      f.dbias_row_stride = bias.over_queries ? 0 : bias.row_stride;
      f.dbias_column_stride = bias.over_queries && bias.column_stride != 0 ? 1 : bias.column_stride;
      if (bias.over_queries) std::fill_n(f.dbias, p.kv_len, T{});
    }
    T* const own_position = moves_position() ? private_position(worker) : nullptr;
    if (own_position != nullptr) {
      T* const diagonals = own_position + gradients.gposition_bias.size(0);
      std::fill_n(diagonals, p.kv_len + f.q_count - 1, T{});
      f.dposition = diagonals + f.q_begin + f.q_count - 1;
    }
    prepare(tile, b, h, worker);
    if (bias.wanted() && !bias.over_queries) wait_for_turn(turns[turn], number);
    kernels.rows(tile, kernel_scratch(worker));
    if (bias.wanted()) {
      if (bias.over_queries) {
        wait_for_turn(turns[turn], number);
        bias.add_private(f.dbias, b, h, 0, p.kv_len);
      }
      pass_turn(turns[turn], number);
    }
    if (own_position != nullptr) add_position_gradient(tile, h, item, own_position);
    fill_empty(tile, b, h);
    if (tlse.data() == nullptr) return;
    for (Index i = f.q_begin; i < f.q_begin + f.q_count; ++i) tlse(b, h, i) = tile.mean[i];
  }

  /// A key range of one key/value head.
  void run_keys(Index item, int worker) const {
    const Index heads = p.batch * p.num_kv_heads, range = item / heads, head = item % heads;
    const Index b = head / p.num_kv_heads, g = head % p.num_kv_heads, group = p.group_size();
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    T* const gk = gradients.gk.data() == nullptr ? nullptr : &gradients.gk(b, g, 0, 0);
    T* const gv = gradients.gv.data() == nullptr ? nullptr : &gradients.gv(b, g, 0, 0);
    clear_rows(gk, gradients.gk.stride(2), p.head_dim, k_begin, k_count);
    clear_rows(gv, gradients.gv.stride(2), p.v_head_dim, k_begin, k_count);
    for (Index h = g * group; h < (g + 1) * group; ++h) {
      SecondOrderTile<T> tile = tile_of(b, h);
      BackwardTile<T>& f = tile.first;
      f.k_begin = k_begin;
      f.k_count = k_count;
      f.dk = gk;
      f.dv = gv;
      f.dk_stride = gradients.gk.stride(2);
      f.dv_stride = gradients.gv.stride(2);
      Index live_begin, live_end;
      mask_query_range(p.mask, b, h, k_begin, k_count, &live_begin, &live_end);
      for (Index t = 0; t < p.query_tiles(); ++t) {
        f.q_begin = t * p.query_tile;
        f.q_count = std::min(p.query_tile, p.q_len - f.q_begin);
        const bool live = f.q_begin < live_end && f.q_begin + f.q_count > live_begin &&
                          mask_next_key(&p.mask, b, h, f.q_begin, f.q_count, k_begin) < k_begin + k_count;
        if (live) kernels.keys(tile, kernel_scratch(worker));
      }
    }
  }
};

}  // namespace v0
}  // namespace qkv
