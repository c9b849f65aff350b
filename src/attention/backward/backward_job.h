// Backward of a part of a batch, as its work items see it, and what one item does: a key range of one kv head. The
// first range also computes delta and lse2 of each query tile. dk and dv belong to one item, for all query heads of its
// group; dq and a shared dbias are added in turn (turns.h). So there are no atomics on data and no per-thread copies of
// gradients, and results do not depend on threads.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/backward/backward_driver.h"
#include "attention/backward/backward_rows.h"
#include "attention/backward/bias_gradient.h"
#include "attention/backward/gradient_sums.h"
#include "attention/backward/position_gradient.h"
#include "attention/call/empty_rows.h"
#include "core/threads/turns.h"

namespace qkv::inline v0 {

inline void zero_rows(const AnyView& x, Index b, Index h, Index begin, Index count) {
  const auto bytes = static_cast<std::size_t>(x.size(3) * x.element_bytes());
  for (Index i = begin; i < begin + count && x.data != nullptr; ++i) std::memset(x.at(b, h, i), 0, bytes);
}

/// The state that all work items share.
template <class Sum> struct BackwardJob {
  const Problem& p;
  BackwardRows<Sum> rows;
  const Gradients& gradients;
  BiasGradient<Sum> bias;
  PositionGradient<Sum> position;
  GradientSums<Sum> sums;
  Turn *tile_turns, *bias_turns;   // shared: [B, H, query tiles]; [query tiles + 1]
  Index turn_offset, head_offset;  // where a ragged sequence begins in arrays of the batch
  Index bias_tiles;                // query tiles of its longest sequence
  const CarriedRanges* carried;    // one of several calls

  Index first_turn(Index b, Index h) const { return turn_offset + (b * p.num_heads + h) * p.query_tiles(); }
  Index head_number(Index b, Index g) const { return head_offset + b * p.num_kv_heads + g; }
  bool sets_in_place() const { return !gradients.accumulate && !p.rounds(); }
  /// Where rows of a key lie in gradients.
  Index row_of(Index key) const { return carried == nullptr ? key : key - carried->first_key; }

  /// Key range [k_begin, +k_count) of head h; queries follow.
  BackwardTile<Sum> tile_of(Index b, Index h, Index k_begin, Index k_count, const OwnScratch<Sum>& own) const {
    BackwardTile<Sum> tile = rows.tile(b, h, p.tile(0));
    tile.k_begin = k_begin;
    tile.k_count = k_count;
    const Index g = h / p.group_size();
    SumRows<Sum> keys = sums.keys(own.sums), values = sums.values(own.sums);
    const bool wants_keys = gradients.dk.data != nullptr || gradients.dk_sums.data != nullptr;
    const bool wants_values = gradients.dv.data != nullptr || gradients.dv_sums.data != nullptr;
    if (!p.rounds()) {
      keys = rows_of_caller<Sum>(gradients.dk, b, g, row_of(k_begin));
      values = rows_of_caller<Sum>(gradients.dv, b, g, row_of(k_begin));
    }
    tile.dk = wants_keys ? keys.data : nullptr;
    tile.dv = wants_values ? values.data : nullptr;
    tile.dq_stride = p.rounds() ? p.head_dim : gradients.dq.stride(2);
    tile.dk_stride = keys.stride;
    tile.dv_stride = values.stride;
    return tile;
  }

  /// One query tile against one key range, in the range's turn. The first range computes delta and lse2; the others
  /// wait for them.
  void run_tile(BackwardTile<Sum>& tile, Index range, Index b, Index h, bool live, const OwnScratch<Sum>& own) const {
    const Index first = tile.q_begin - p.first_query;
    if (gradients.dq.data != nullptr) {
      tile.dq = gradients.dq.as<Sum>(b, h, first);
      if (p.rounds()) {
        const SumRows<Sum> queries = sums.queries(own.sums, head_number(b, h / p.group_size()), h, first);
        tile.dq = queries.data;
        if (range == 0) sums.clear(queries, tile.q_count);
      }
    }
    if (range == 0) rows.prepare(tile, b, h, own.kernel);
    tile.sets_dq = range == 0 && sets_in_place();
    if (live) {
      if (position.wanted()) tile.dposition = position.begin_tile(tile, own.position);
      run_backward(p.kernels<Sum>(), tile, own.kernel);
      if (position.wanted()) position.end_tile(tile, own.position);
      tile.sets_keys = false;
    } else if (tile.sets_dq) {
      zero_rows(gradients.dq, b, h, first, tile.q_count);
    }
    if (!p.rounds() || range + 1 != p.key_ranges()) return;
    write_sums<Sum>(p, {tile.dq, tile.dq_stride}, gradients.dq, b, h, first, tile.q_count, gradients.accumulate);
  }

  /// Sets dk and dv of keys that no query attends.
  void zero_keys(Index b, Index g, Index k_begin, Index k_count) const {
    zero_rows(gradients.dk, b, g, row_of(k_begin), k_count);
    zero_rows(gradients.dv, b, g, row_of(k_begin), k_count);
  }

  /// All query tiles of one head against one key range. `sequence` numbers (item, head of the group) for shared dbias;
  /// `first`: nothing has been added to dk and dv of the range.
  void run_head(
      Index range, Index b, Index h, Index sequence, bool first, Ahead* ahead, const OwnScratch<Sum>& own) const {
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    const Index whole_head = p.first_head + h;  // as masks and gradients of biases count it
    BackwardTile<Sum> tile = tile_of(b, h, k_begin, k_count, own);
    tile.sets_keys = first && sets_in_place() && carried == nullptr;
    if (bias.wanted()) bias.begin_tile(tile, own.bias, b, whole_head);
    if (position.wanted()) position.begin_item(own.position);
    const bool share_bias = bias.wanted() && bias.shared && !bias.over_queries;
    for (Index t = 0; t < p.query_tiles(); ++t) {
      rows.set_queries(tile, b, h, p.tile(t));
      Turn* tile_turn = p.key_ranges() > 1 ? &tile_turns[first_turn(b, h) + t] : nullptr;
      if (tile_turn != nullptr) wait_for_turn(*tile_turn, range);
      if (share_bias) wait_for_turn(bias_turns[t], sequence);
      const bool live = mask_meets(p.mask, b, whole_head, tile.q_begin, tile.q_count, k_begin, k_count);
      tile.ahead = t + 1 == p.query_tiles() ? ahead : nullptr;
      run_tile(tile, range, b, h, live, own);
      if (share_bias) pass_turn(bias_turns[t], sequence);
      if (tile_turn != nullptr) pass_turn(*tile_turn, range);
    }
    for (Index t = p.query_tiles(); share_bias && t < bias_tiles;
         ++t) {  // turns of tiles that only other sequences have
      wait_for_turn(bias_turns[t], sequence);
      pass_turn(bias_turns[t], sequence);
    }
    if (tile.sets_keys) zero_keys(b, h / p.group_size(), k_begin, k_count);
    const bool adds_bias = bias.wanted() && bias.over_queries;
    if (adds_bias || position.wanted()) {
      Turn& turn = bias_turns[bias_tiles];
      wait_for_turn(turn, sequence);
      if (adds_bias) bias.add_private(own.bias, b, whole_head, k_begin, k_count);
      if (position.wanted()) position.add(own.position, whole_head);
      pass_turn(turn, sequence);
    }
    if (tile.dv != nullptr && p.rows_can_be_empty()) {
      add_empty_dv(p, b, h, rows.lse, rows.dout, k_begin, k_count, tile.dv, tile.dv_stride);
    }
  }

  /// Whether heads come from memory and are one item each: then an item fetches the rows of the next one.
  bool fetches() const {
    const Index width = p.head_dim + p.v_head_dim;
    const Index numbers = p.num_heads * p.q_len * (2 * width) + 2 * p.num_kv_heads * p.kv_len * width;
    return !p.rounds() && p.key_ranges() == 1 && p.batch * numbers * p.sum_bytes() > kFetchedBytes;
  }
  /// What kv head g of sequence b and the first query head of its group read and write.
  Ahead ahead_of(Index b, Index g) const {
    const Index h = g * p.group_size();
    Ahead ahead{};
    for (const AnyView* x : {&p.q, &rows.dout, &rows.out}) add_rows_of(ahead, *x, b, h, 0, p.q_len);
    for (const AnyView* x : {&p.keys.k, &p.keys.v}) add_rows_of(ahead, *x, b, g, 0, p.kv_len);
    add_rows_of(ahead, gradients.dq, b, h, 0, p.q_len);
    for (const AnyView* x : {&gradients.dk, &gradients.dv}) add_rows_of(ahead, *x, b, g, 0, p.kv_len);
    return ahead;
  }

  /// Runs key range `range` of kv head g of sequence b. `item` is its number in the order in which items are claimed;
  /// `ahead` is fetched meanwhile, or null.
  void run(Index item, Index range, Index b, Index g, Ahead* ahead, const OwnScratch<Sum>& own) const {
    const Index head = head_number(b, g);
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    const SumRows<Sum> keys = sums.keys(own.sums), values = sums.values(own.sums);
    if (p.rounds()) {
      sums.take_slot(head);
      sums.clear(keys, k_count);
      sums.clear(values, k_count);
    }
    const Index group = p.group_size();
    if (group == 0 && sets_in_place()) zero_keys(b, g, k_begin, k_count);
    for (Index r = 0; r < group; ++r)
      run_head(range, b, g * group + r, item * group + r, r == 0, r + 1 == group ? ahead : nullptr, own);
    if (!p.rounds()) return;
    const bool adds = gradients.accumulate || carried != nullptr;
    write_sums(p, keys, gradients.dk, b, g, k_begin, k_count, gradients.accumulate);
    write_sums(p, values, gradients.dv, b, g, k_begin, k_count, gradients.accumulate);
    write_sums(p, keys, gradients.dk_sums, b, g, row_of(k_begin), k_count, adds);
    write_sums(p, values, gradients.dv_sums, b, g, row_of(k_begin), k_count, adds);
    if (range + 1 == p.key_ranges()) sums.leave_slot(head);
  }
};

}  // namespace qkv::inline v0
