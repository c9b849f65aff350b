// Which rows every rank holds.
#include <algorithm>

#include "core/check.h"
#include "dist/exchange.h"

namespace qkv::inline v0::dist {
namespace {

using RowsOfRanks = std::vector<std::vector<Rows>>;

/// A sequence as blocks of rows.
struct Blocks {
  Index length, block;

  Index count() const { return length / block + (length % block != 0 ? 1 : 0); }
  /// Piece n of `pieces`: whole blocks, as many in each as in any other or one more in the first ones.
  Rows piece(Index n, Index pieces) const {
    const auto begin = [&](Index p) {
      return std::min((count() / pieces * p + std::min(p, count() % pieces)) * block, length);
    };
    return {begin(n), begin(n + 1)};
  }
};

/// Rank owner(n) gets piece n of `pieces`. Neighbours become one.
template <class Owner> RowsOfRanks assigned(const Blocks& blocks, Index pieces, int ranks, const Owner& owner) {
  RowsOfRanks all(static_cast<std::size_t>(ranks));
  for (Index n = 0; n < pieces; ++n) {
    const Rows some = blocks.piece(n, pieces);
    if (some.count() == 0) continue;
    std::vector<Rows>& rows = all[static_cast<std::size_t>(owner(n))];
    if (!rows.empty() && rows.back().end == some.begin) {
      rows.back().end = some.end;
    } else {
      rows.push_back(some);
    }
  }
  return all;
}

RowsOfRanks contiguous(const Blocks& blocks, int ranks) {
  return assigned(blocks, ranks, ranks, [](Index n) { return n; });
}
RowsOfRanks zig_zag(const Blocks& blocks, int ranks, Index turns) {
  const Index turn = 2 * Index{ranks};
  const Index most = blocks.count() / turn + 1;  // then no piece has more than a block
  return assigned(
      blocks, std::min(turns, most) * turn, ranks, [&](Index n) { return std::min(n % turn, turn - 1 - n % turn); });
}

}  // namespace

RowsOfRanks rows_of_ranks(const ContextParallelOptions& cut, Index length, int ranks) {
  constexpr const char* function = "dist::rows_of_rank";
  check<OptionError>(length >= 0, function, "length must not be negative: got ", length);
  check<OptionError>(cut.block >= 1, function, "block must be at least 1: got ", cut.block);
  check<OptionError>(cut.turns >= 1, function, "turns must be at least 1: got ", cut.turns);
  const Blocks blocks{length, cut.block};
  return cut.layout == Layout::kZigZag ? zig_zag(blocks, ranks, cut.turns) : contiguous(blocks, ranks);
}

std::vector<Rows> rows_of_rank(const ContextParallelOptions& cut, Index length, int rank, int ranks) {
  check<OptionError>(
      rank >= 0 && rank < ranks, "dist::rows_of_rank", "rank must be at least 0 and below ", ranks, ": got ", rank);
  return rows_of_ranks(cut, length, ranks)[static_cast<std::size_t>(rank)];
}

std::vector<Rows> ContextParallel::rows(Index length) const {
  return rows_of_rank(options_, length, transport_.rank(), transport_.size());
}

}  // namespace qkv::inline v0::dist
