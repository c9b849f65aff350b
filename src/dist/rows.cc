// Which rows of a sequence a rank holds.
#include "core/check.h"
#include "qkv/dist/context_parallel.h"

namespace qkv::inline v0::dist {
namespace {

/// Piece n of `pieces`: whole blocks, as many in each as in any other or one more in the first ones.
Rows piece(Index length, Index block, Index n, Index pieces) {
  const Index blocks = length / block + (length % block != 0 ? 1 : 0);
  const auto begin = [&](Index p) { return std::min((blocks / pieces * p + std::min(p, blocks % pieces)) * block, length); };
  return {begin(n), begin(n + 1)};
}

}  // namespace

std::vector<Rows> rows_of_rank(Layout layout, Index length, Index block, int rank, int ranks) {
  constexpr const char* function = "dist::rows_of_rank";
  check<OptionError>(length >= 0, function, "length must not be negative: got ", length);
  check<OptionError>(block >= 1, function, "block must be at least 1: got ", block);
  check<OptionError>(rank >= 0 && rank < ranks, function, "rank must be at least 0 and below ", ranks, ": got ", rank);
  std::vector<Rows> rows;
  const auto add = [&](const Rows& some) {
    if (some.count() == 0) return;
    if (!rows.empty() && rows.back().end == some.begin) {
      rows.back().end = some.end;
    } else {
      rows.push_back(some);
    }
  };
  if (layout == Layout::kContiguous) {
    add(piece(length, block, rank, ranks));
  } else {
    add(piece(length, block, rank, 2 * Index{ranks}));
    add(piece(length, block, 2 * Index{ranks} - 1 - rank, 2 * Index{ranks}));
  }
  return rows;
}

std::vector<Rows> ContextParallel::rows(Index length) const {
  return rows_of_rank(options_.layout, length, options_.block, transport_.rank(), transport_.size());
}

}  // namespace qkv::inline v0::dist
