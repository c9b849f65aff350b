// One second-order call, as its work items see it. First the rows: an item is a query tile of one head and computes
// tout, tlse, the row sums, gq and its part of gbias. Then the keys: an item is a key range of one key/value head and
// computes gk and gv from all query heads of the group, in their order. Each output element belongs to one item, except
// in a gbias that repeats: there items add in turn (core/threads/turns.h). So bits do not depend on threads.
#pragma once

#include <algorithm>

#include "attention/backward/backward_rows.h"
#include "attention/backward/bias_gradient.h"
#include "attention/backward/position_gradient.h"
#include "attention/call/empty_rows.h"
#include "core/threads/turns.h"
#include "dispatch/kernels.h"
#include "qkv/derivatives.h"

namespace qkv::inline v0 {

template <class T> struct SecondOrderJob {
  const Problem& p;
  const SecondOrderKernels<T>& kernels;
  const AttentionTangents<T>& tangents;
  BackwardRows<T> rows;  // out and dout are null in forward mode
  View<T, 4> tout;       // null: not wanted
  View<T, 3> tlse;       // null: not wanted
  const AttentionSecondGradients<T>& gradients;
  BiasGradient<T> bias;
  PositionGradient<T> position;
  // tangent of the position bias at distance 0, head 0, as PositionVectors; null: none
  const T* position_rates = nullptr;
  // Shared scratch beside that of `rows`: two more numbers per row; a turn per query tile and two more.
  T *mean = nullptr, *moment = nullptr;
  Turn* turns = nullptr;
  OwnBytes own_bytes{};

  Index row_items() const { return p.batch * p.num_heads * p.query_tiles(); }
  Index key_items() const {
    const bool wanted = gradients.gk.data() != nullptr || gradients.gv.data() != nullptr;
    return wanted ? p.key_ranges() * p.batch * p.num_kv_heads : 0;
  }

  /// Sets everything but the range of keys, and what is written to.
  SecondOrderTile<T> tile_of(Index b, Index h, Index query_tile) const {
    const Index g = h / p.group_size();
    const auto at = [b](const auto& view, Index head) {
      return view.data() == nullptr ? nullptr : view.data() + b * view.stride(0) + head * view.stride(1);
    };
    SecondOrderTile<T> tile{};
    tile.first = rows.tile(b, h, p.tile(query_tile));
    const Index first = tile.first.q_begin;
    tile.tangents = {tangents.q.data() == nullptr ? nullptr : &tangents.q(b, h, first, 0), at(tangents.k, g),
        at(tangents.v, g), tangents.q.stride(2), tangents.k.stride(2), tangents.v.stride(2), {}, nullptr};
    if (tangents.bias.data() != nullptr) {
      const View<const T, 4>& rates = tangents.bias;
      tile.tangents.bias = {rates.data() + b * repeat_stride(rates, 0) + h * repeat_stride(rates, 1),
          repeat_stride(rates, 2), repeat_stride(rates, 3)};
    }
    if (position_rates != nullptr) {
      const T* by_distance =
          position_rates + h * p.position.head_stride - position_offset(*p.position_bias, p.q_len, p.kv_len);
      if (tile.tangents.bias.data == nullptr) {
        tile.tangents.bias = {by_distance, -1, 1};
      } else {
        tile.tangents.position = by_distance;
      }
    }
    if (tangents.sinks.data() != nullptr) tile.sink_tangent = tangents.sinks(h);
    tile.mean = mean + rows.first_row(b, h) + first;
    tile.moment = moment + rows.first_row(b, h) + first;
    return tile;
  }

  /// tout of rows without a key is out with tv instead of v.
  void fill_empty(const SecondOrderTile<T>& tile, Index b, Index h) const {
    const bool nan = p.empty_row == EmptyRow::kNaN;
    if (tile.tout == nullptr || !p.rows_can_be_empty() || (tangents.v.data() == nullptr && !nan)) return;
    T row_lse[kMaxQueryTile];
    for (Index i = 0; i < tile.first.q_count; ++i) row_lse[i] = *rows.lse.template as<T>(b, h, tile.first.q_begin + i);
    const ::qkv::Rows out{reinterpret_cast<std::byte*>(tile.tout), stored_as<T>(), tile.tout_stride};
    fill_empty_out(p, tangents.v, b, h, tile.first.q_begin, tile.first.q_count, row_lse, out);
  }

  /// gsinks[h] = sum over b and i of w_sink ((rate - mean) (0 - delta) - moment).
  void add_gsinks() const {
    add_sink_gradient(rows, 0, p.batch, gradients.gsinks, [this](Index row, Index h) {
      const double rate = tangents.sinks.data() == nullptr ? 0 : static_cast<double>(tangents.sinks(h));
      const double e = (static_cast<double>(mean[row]) - rate) * static_cast<double>(rows.delta[row]);
      return e - static_cast<double>(moment[row]);
    });
  }

  static void clear_rows(T* rows, Index stride, Index width, Index count) {
    if (rows == nullptr) return;
    for (Index i = 0; i < count; ++i) std::fill_n(rows + i * stride, width, T{});
  }

  /// Runs a query tile of one head.
  void run_rows(Index item, const OwnScratch<T>& own) const {
    const Index tiles = p.query_tiles(), head = item / tiles, b = head / p.num_heads, h = head % p.num_heads;
    const Index t = tiles - 1 - item % tiles;  // late queries first: causal makes them cost most
    SecondOrderTile<T> tile = tile_of(b, h, t);
    BackwardTile<T>& f = tile.first;
    f.k_count = p.kv_len;
    if (tout.data() != nullptr) tile.tout = &tout(b, h, f.q_begin, 0);
    tile.tout_stride = tout.stride(2);
    if (gradients.gq.data() != nullptr) f.dq = &gradients.gq(b, h, f.q_begin, 0);
    f.dq_stride = gradients.gq.stride(2);
    clear_rows(tile.tout, tile.tout_stride, p.v_head_dim, f.q_count);
    clear_rows(f.dq, f.dq_stride, p.head_dim, f.q_count);
    const Index turn = bias.over_queries ? p.query_tiles() : t, number = bias.over_queries ? item : head;
    if (bias.wanted()) bias.begin_tile(f, own.bias, b, h);
    if (position.wanted()) {
      position.begin_item(own.position);
      f.dposition = position.begin_tile(f, own.position);
    }
    rows.prepare(f, b, h, own.kernel);
    if (bias.wanted() && !bias.over_queries) wait_for_turn(turns[turn], number);
    kernels.rows(tile, own.kernel);
    if (bias.wanted()) {
      if (bias.over_queries) {
        wait_for_turn(turns[turn], number);
        bias.add_private(own.bias, b, h, 0, p.kv_len);
      }
      pass_turn(turns[turn], number);
    }
    if (position.wanted()) {
      position.end_tile(f, own.position);
      Turn& position_turn = turns[p.query_tiles() + 1];
      wait_for_turn(position_turn, item);
      position.add(own.position, h);
      pass_turn(position_turn, item);
    }
    fill_empty(tile, b, h);
    if (tlse.data() == nullptr) return;
    for (Index i = 0; i < f.q_count; ++i) tlse(b, h, f.q_begin + i) = tile.mean[i];
  }

  /// Runs a key range of one key/value head.
  void run_keys(Index item, const OwnScratch<T>& own) const {
    const Index heads = p.batch * p.num_kv_heads, range = item / heads, head = item % heads;
    const Index b = head / p.num_kv_heads, g = head % p.num_kv_heads, group = p.group_size();
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    T* const gk = gradients.gk.data() == nullptr ? nullptr : &gradients.gk(b, g, k_begin, 0);
    T* const gv = gradients.gv.data() == nullptr ? nullptr : &gradients.gv(b, g, k_begin, 0);
    clear_rows(gk, gradients.gk.stride(2), p.head_dim, k_count);
    clear_rows(gv, gradients.gv.stride(2), p.v_head_dim, k_count);
    for (Index h = g * group; h < (g + 1) * group; ++h) {
      for (Index t = 0; t < p.query_tiles(); ++t) {
        const Positions queries = p.tile(t);
        const Index count = queries.end - queries.begin;
        const bool live = mask_meets(p.mask, b, h, queries.begin, count, k_begin, k_count);
        if (!live) continue;
        SecondOrderTile<T> tile = tile_of(b, h, t);
        BackwardTile<T>& f = tile.first;
        f.k_begin = k_begin;
        f.k_count = k_count;
        f.dk = gk;
        f.dv = gv;
        f.dk_stride = gradients.gk.stride(2);
        f.dv_stride = gradients.gv.stride(2);
        kernels.keys(tile, own.kernel);
      }
    }
  }
};

}  // namespace qkv::inline v0
