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
  /// Private numbers of a worker: sums by row, in double, since ALiBi's row is of all pairs; then by diagonal of one
  /// tile of at most so many keys.
  std::size_t worker_bytes(Index keys) const {
    return wanted() ? line_bytes<double>(table.size(0)) + line_bytes<Sum>(p->query_tile + keys) : 0;
  }

  void begin_item(Sum* own) const { std::fill_n(rows(own), table.size(0), 0.0); }

  /// Where the tile's kernel adds.
  Sum* begin_tile(const BackwardTile<Sum>& tile, Sum* own) const {
    std::fill_n(diagonals(own), tile.q_count + tile.k_count - 1, Sum{0});
    return diagonals(own) - first_diagonal(tile);
  }
  void end_tile(const BackwardTile<Sum>& tile, Sum* own) const {
    const Sum* const diagonal = diagonals(own);
    const Index first = first_diagonal(tile) - position_offset(*p->position_bias, p->queries, p->kv_len);
    for (Index n = 0; n < tile.q_count + tile.k_count - 1; ++n) {
      rows(own)[p->position.rows[first + n]] += p->position_bias->factor(first + n) * static_cast<double>(diagonal[n]);
    }
  }

  /// Called in the item's turn.
  void add(Sum* own, Index h) const {
    for (Index row = 0; row < table.size(0); ++row) *table.as<Sum>(row, h) += static_cast<Sum>(rows(own)[row]);
  }

 private:
  double* rows(Sum* own) const { return reinterpret_cast<double*>(own); }
  Sum* diagonals(Sum* own) const {
    return reinterpret_cast<Sum*>(reinterpret_cast<std::byte*>(own) + line_bytes<double>(table.size(0)));
  }
  static Index first_diagonal(const BackwardTile<Sum>& tile) {
    return tile.k_begin - (tile.q_begin + tile.q_count - 1);
  }
};

}  // namespace qkv::inline v0
