// The rows of every rank.
#include <algorithm>

#include "core/check.h"
#include "dist/exchange.h"

namespace qkv::inline v0::dist {

void append(std::vector<Rows>& rows, const Rows& more) {
  if (!rows.empty() && rows.back().end == more.begin) {
    rows.back().end = more.end;
  } else {
    rows.push_back(more);
  }
}

/// A piece is whole blocks, as many as any other or one more in the first pieces.
std::vector<std::vector<Rows>> rows_of_ranks(const ContextParallelOptions& cut, Index length, int ranks) {
  constexpr const char* function = "dist::rows_of_rank";
  check<OptionError>(length >= 0, function, "length must not be negative: got ", length);
  check<OptionError>(cut.block >= 1, function, "block must be at least 1: got ", cut.block);
  check<OptionError>(cut.turns >= 1, function, "turns must be at least 1: got ", cut.turns);
  const bool zig_zag = cut.layout == Layout::kZigZag;
  const Index blocks = length / cut.block + (length % cut.block != 0 ? 1 : 0);
  const Index turn = zig_zag ? 2 * Index{ranks} : ranks;  // pieces of it
  const Index most = blocks / turn + 1;                   // then no piece has more than a block
  const Index pieces = zig_zag ? std::min(cut.turns, most) * turn : turn;
  const auto begin = [&](Index piece) {
    const Index before = blocks / pieces * piece + std::min(piece, blocks % pieces);
    return before > length / cut.block ? length : before * cut.block;
  };
  std::vector<std::vector<Rows>> all(static_cast<std::size_t>(ranks));
  for (Index n = 0; n < pieces; ++n) {
    const Index owner = zig_zag ? std::min(n % turn, turn - 1 - n % turn) : n;
    if (begin(n) < begin(n + 1)) append(all[static_cast<std::size_t>(owner)], {begin(n), begin(n + 1)});
  }
  return all;
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
