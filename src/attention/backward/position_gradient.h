// The gradient of a position bias. Kernels add dS of a tile along its diagonals; an item sums these by the rows of the
// table, privately and in one order, and adds its sums once, in its turn. So no Tq x Tk is stored, and bits do not
// depend on threads.
//   dtable[row(d), h] += factor(d) * sum over b and i of dS[b, h, i, i + d + offset]
#pragma once

#include <algorithm>

#include "attention/call/problem.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

template <class Sum> struct PositionGradient {
  AnyView table{};  // [rows, H]; null: not wanted
  const Problem* p = nullptr;

  bool wanted() const { return table.data != nullptr && !table.is_empty(); }
  /// Private numbers of a worker: sums by row, then by diagonal of one tile of at most so many keys.
  std::size_t worker_bytes(Index keys) const {
    return wanted() ? line_bytes<Sum>(table.size(0) + p->query_tile + keys) : 0;
  }

  void begin_item(Sum* own) const { std::fill_n(own, table.size(0), Sum{0}); }

  /// Where the tile's kernel adds.
  Sum* begin_tile(const BackwardTile<Sum>& tile, Sum* own) const {
    std::fill_n(own + table.size(0), tile.q_count + tile.k_count - 1, Sum{0});
    return own + table.size(0) - first_diagonal(tile);
  }
  void end_tile(const BackwardTile<Sum>& tile, Sum* own) const {
    const Sum* diagonals = own + table.size(0);
    const Index first = first_diagonal(tile) - position_offset(*p->position_bias, p->queries, p->kv_len);
    for (Index n = 0; n < tile.q_count + tile.k_count - 1; ++n) {
      own[p->position.rows[first + n]] += static_cast<Sum>(p->position_bias->factor(first + n)) * diagonals[n];
    }
  }

  /// Called in the item's turn.
  void add(const Sum* own, Index h) const {
    for (Index row = 0; row < table.size(0); ++row) *table.as<Sum>(row, h) += own[row];
  }

 private:
  static Index first_diagonal(const BackwardTile<Sum>& tile) {
    return tile.k_begin - (tile.q_begin + tile.q_count - 1);
  }
};

}  // namespace qkv::inline v0
