// One call of backward, as its work items see it, and what one item does: a key range of one kv head. The first range also
// makes delta and lse2 of each query tile. dk and dv belong to one item, for all query heads of its group; dq and a shared
// dbias are added in turn (turns.h). No atomics on data, no slabs, no dependence on threads. Not: which items there are and in
// which order (backward.cc, varlen_backward.cc).
#pragma once

#include <algorithm>
#include <numbers>

#include "attention/bias_gradient.h"
#include "attention/empty_rows.h"
#include "attention/gradient_sums.h"
#include "attention/position_gradient.h"
#include "attention/problem.h"
#include "attention/row_lse.h"
#include "attention/turns.h"

namespace qkv {
inline namespace v0 {

template <class T>
void zero_rows(const View<T, 4>& view, Index b, Index h, Index begin, Index count) {
  for (Index i = begin; i < begin + count; ++i) std::fill_n(&view(b, h, i, 0), view.size(3), T{});
}

/// One call, as every work item sees it.
template <class T>
struct BackwardJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<const T, 4> out;
  View<const Sum, 3> lse;
  View<const T, 4> dout;
  const AttentionGradients<T>& gradients;
  BiasGradient<T> bias;
  GradientSums<T> sums;
  // Shared scratch: delta, lse2 in two parts, each [B, H, Tq]; tile turns [B, H, query tiles]; bias turns [query tiles + 1].
  Sum *delta = nullptr, *lse2_high = nullptr, *lse2_low = nullptr;
  Turn *tile_turns = nullptr, *bias_turns = nullptr;
  std::byte* scratch = nullptr;  // workers x (kernel scratch + private dbias + private sums + private dposition)
  std::size_t kernel_bytes = 0, bias_bytes = 0, worker_bytes = 0;

  Index row_offset = 0, turn_offset = 0, head_offset = 0;  // of one sequence of a ragged batch in what the batch shares
  Index longest_tiles = 0;                                 // query tiles of its longest sequence; 0: of this one

  PositionGradient<T> position{};

  Index first_row(Index b, Index h) const { return row_offset + (b * p.num_heads + h) * p.q_len; }
  Index first_turn(Index b, Index h) const { return turn_offset + (b * p.num_heads + h) * p.query_tiles(); }
  Index head_number(Index b, Index g) const { return head_offset + b * p.num_kv_heads + g; }
  Index key_ranges() const { return p.key_ranges(); }
  Index bias_tiles() const { return std::max(longest_tiles, p.query_tiles()); }
  bool wants(const View<T, 4>& view) const { return view.data() != nullptr; }
  bool sets_in_place() const { return !gradients.accumulate && !kRoundedAtEnd<T>; }
  void* kernel_scratch(int worker) const { return scratch + static_cast<std::size_t>(worker) * worker_bytes; }
  Sum* private_bias(int worker) const {
    return reinterpret_cast<Sum*>(scratch + static_cast<std::size_t>(worker) * worker_bytes + kernel_bytes);
  }
  std::byte* private_sums(int worker) const {
    return scratch + static_cast<std::size_t>(worker) * worker_bytes + kernel_bytes + bias_bytes;
  }
  Sum* private_position(int worker) const { return reinterpret_cast<Sum*>(private_sums(worker) + sums.worker_bytes()); }

  /// delta and lse2 of the tile's queries: the work of the first key range, which the others wait for.
  void prepare(const BackwardTile<T>& tile, Index b, Index h, int worker) const {
    const Index row = first_row(b, h);
    DeltaRows<T> rows{};
    rows.dout = tile.dout;
    rows.out = out.data() + b * out.stride(0) + h * out.stride(1);
    rows.dout_stride = dout.stride(2);
    rows.out_stride = out.stride(2);
    rows.v_head_dim = p.v_head_dim;
    rows.q_begin = tile.q_begin;
    rows.q_count = tile.q_count;
    rows.delta = delta + row;
    p.kernels->delta(rows, kernel_scratch(worker));
    split_lse(p, lse, b, h, tile.q_begin, tile.q_count, lse2_high + row, lse2_low + row, kernel_scratch(worker));
    if (gradients.dlse.data() == nullptr) return;
    for (Index i = tile.q_begin; i < tile.q_begin + tile.q_count; ++i) rows.delta[i] -= gradients.dlse(b, h, i);
  }

  /// The same of every row where there is no key range that would do it: out is 0 and lse a sink, or -inf.
  void prepare_without_keys() const {
    for (Index b = 0; b < p.batch; ++b) {
      for (Index h = 0; h < p.num_heads; ++h) {
        for (Index i = 0; i < p.q_len; ++i) {
          const Index row = first_row(b, h) + i;
          delta[row] = gradients.dlse.data() == nullptr ? Sum{0} : -gradients.dlse(b, h, i);
          const double exact = static_cast<double>(lse(b, h, i)) * std::numbers::log2e;
          lse2_high[row] = static_cast<Sum>(std::isinf(exact) ? -exact : exact);
          lse2_low[row] = std::isinf(exact) ? Sum{0} : static_cast<Sum>(exact - static_cast<double>(lse2_high[row]));
        }
      }
    }
  }

  BackwardTile<T> tile_of(Index b, Index h, Index k_begin, Index k_count, int worker) const {
    const Index g = h / p.group_size();
    const auto at = [b](const auto& view, Index head) {
      return view.data() == nullptr ? nullptr : view.data() + b * view.stride(0) + head * view.stride(1);
    };
    BackwardTile<T> tile{};
    tile.scores = p.scores(b, h);
    tile.v = at(p.v, g);
    tile.dout = at(dout, h);
    const Index row = first_row(b, h);
    tile.delta = delta + row;
    tile.lse2_high = lse2_high + row;
    tile.lse2_low = lse2_low + row;
    tile.v_stride = p.v.stride(2);
    tile.dout_stride = dout.stride(2);
    tile.v_head_dim = p.v_head_dim;
    tile.k_begin = k_begin;
    tile.k_count = k_count;
    if constexpr (!kRoundedAtEnd<T>) {
      tile.dq = at(gradients.dq, h);
      tile.dk = at(gradients.dk, g);
      tile.dv = at(gradients.dv, g);
      tile.dq_stride = gradients.dq.stride(2);
      tile.dk_stride = gradients.dk.stride(2);
      tile.dv_stride = gradients.dv.stride(2);
    } else {
      const SumRows<T> keys = sums.keys(private_sums(worker), k_begin), values = sums.values(private_sums(worker), k_begin);
      tile.dk = wants(gradients.dk) ? keys.data : nullptr;
      tile.dv = wants(gradients.dv) ? values.data : nullptr;
      tile.dk_stride = keys.stride;
      tile.dv_stride = values.stride;
    }
    return tile;
  }

  /// One query tile against one key range, in the range's turn.
  void run_tile(BackwardTile<T>& tile, Index range, Index b, Index h, bool live, int worker) const {
    if constexpr (kRoundedAtEnd<T>) {
      const SumRows<T> rows = sums.queries(private_sums(worker), head_number(b, h / p.group_size()), h, tile.q_begin);
      tile.dq = wants(gradients.dq) ? rows.data : nullptr;
      tile.dq_stride = rows.stride;
      if (tile.dq != nullptr && range == 0) sums.clear(rows, tile.q_begin, tile.q_count);
    }
    if (range == 0) prepare(tile, b, h, worker);
    tile.sets_dq = range == 0 && sets_in_place();
    if (live) {
      if (position.wanted()) tile.dposition = position.begin_tile(tile, private_position(worker));
      p.kernels->backward(tile, kernel_scratch(worker));
      if (position.wanted()) position.end_tile(tile, private_position(worker));
      tile.sets_keys = false;
    } else if (tile.sets_dq && wants(gradients.dq)) {
      zero_rows(gradients.dq, b, h, tile.q_begin, tile.q_count);
    }
    if constexpr (kRoundedAtEnd<T>) {
      if (tile.dq == nullptr || range + 1 != key_ranges()) return;
      sums.round({tile.dq, tile.dq_stride}, gradients.dq, b, h, tile.q_begin, tile.q_count, gradients.accumulate);
    }
  }

  /// dk and dv of keys that no query sees.
  void zero_keys(Index b, Index g, Index k_begin, Index k_count) const {
    if (wants(gradients.dk)) zero_rows(gradients.dk, b, g, k_begin, k_count);
    if (wants(gradients.dv)) zero_rows(gradients.dv, b, g, k_begin, k_count);
  }

  /// All query tiles of one head against one key range. `sequence` numbers (item, head of the group) for shared dbias;
  /// `first`: nothing has been added to dk and dv of the range.
  void run_head(Index range, Index b, Index h, Index sequence, bool first, int worker) const {
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    BackwardTile<T> tile = tile_of(b, h, k_begin, k_count, worker);
    tile.sets_keys = first && sets_in_place();
    Sum* bias_sums = private_bias(worker);
    if (bias.wanted()) {
      tile.dbias_row_stride = bias.over_queries ? 0 : bias.row_stride;
      tile.dbias_column_stride = bias.over_queries && bias.column_stride != 0 ? 1 : bias.column_stride;
      tile.dbias = bias.over_queries ? bias_sums - k_begin * tile.dbias_column_stride : bias.head(b, h);
      if (bias.over_queries) std::fill_n(bias_sums, p.backward_keys, Sum{0});
    }
    if (position.wanted()) position.begin_item(private_position(worker));
    Index live_begin, live_end;
    mask_query_range(p.mask, b, h, k_begin, k_count, &live_begin, &live_end);
    const bool share_bias = bias.wanted() && bias.shared && !bias.over_queries;
    for (Index t = 0; t < p.query_tiles(); ++t) {
      tile.q_begin = t * p.query_tile;
      tile.q_count = std::min(p.query_tile, p.q_len - tile.q_begin);
      Turn* tile_turn = key_ranges() > 1 ? &tile_turns[first_turn(b, h) + t] : nullptr;
      if (tile_turn != nullptr) wait_for_turn(*tile_turn, range);
      if (share_bias) wait_for_turn(bias_turns[t], sequence);
      const bool live = tile.q_begin < live_end && tile.q_begin + tile.q_count > live_begin &&
                        mask_next_key(&p.mask, b, h, tile.q_begin, tile.q_count, k_begin) < k_begin + k_count;
      run_tile(tile, range, b, h, live, worker);
      if (share_bias) pass_turn(bias_turns[t], sequence);
      if (tile_turn != nullptr) pass_turn(*tile_turn, range);
    }
    for (Index t = p.query_tiles(); share_bias && t < bias_tiles(); ++t) {  // the turns of tiles that other sequences have
      wait_for_turn(bias_turns[t], sequence);
      pass_turn(bias_turns[t], sequence);
    }
    if (tile.sets_keys) zero_keys(b, h / p.group_size(), k_begin, k_count);
    const bool adds_bias = bias.wanted() && bias.over_queries;
    if (adds_bias || position.wanted()) {
      Turn& turn = bias_turns[bias_tiles()];
      wait_for_turn(turn, sequence);
      if (adds_bias) bias.add_private(bias_sums, b, h, k_begin, k_count);
      if (position.wanted()) position.add(private_position(worker), h);
      pass_turn(turn, sequence);
    }
    if (tile.dv != nullptr && p.rows_can_be_empty()) {
      add_empty_dv(p, b, h, lse.data() + b * lse.stride(0) + h * lse.stride(1), lse.stride(2), tile.dout, tile.dout_stride,
                   k_begin, k_count, tile.dv, tile.dv_stride);
    }
  }

  /// Key range `range` of kv head g of sequence b. `item` is its number in the order in which items are claimed.
  void run(Index item, Index range, Index b, Index g, int worker) const {
    const Index head = head_number(b, g);
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    const SumRows<T> keys = sums.keys(private_sums(worker), k_begin), values = sums.values(private_sums(worker), k_begin);
    if constexpr (kRoundedAtEnd<T>) {
      sums.take_slot(head);
      sums.clear(keys, k_begin, k_count);
      sums.clear(values, k_begin, k_count);
    }
    const Index group = p.group_size();
    if (group == 0 && sets_in_place()) zero_keys(b, g, k_begin, k_count);
    for (Index r = 0; r < group; ++r) run_head(range, b, g * group + r, item * group + r, r == 0, worker);
    if constexpr (kRoundedAtEnd<T>) {
      if (wants(gradients.dk)) sums.round(keys, gradients.dk, b, g, k_begin, k_count, gradients.accumulate);
      if (wants(gradients.dv)) sums.round(values, gradients.dv, b, g, k_begin, k_count, gradients.accumulate);
      if (range + 1 == key_ranges()) sums.leave_slot(head);
    }
  }
};

}  // namespace v0
}  // namespace qkv
