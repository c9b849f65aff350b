#include "dist/rows.h"

#include <algorithm>
#include <numeric>

#include "attention/mask/kept_keys.h"
#include "core/check.h"

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
template <class Owner>
RowsOfRanks dealt(const Blocks& blocks, Index pieces, int ranks, const Owner& owner) {
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
  return dealt(blocks, ranks, ranks, [](Index n) { return n; });
}
RowsOfRanks zig_zag(const Blocks& blocks, int ranks, Index turns) {
  const Index turn = 2 * Index{ranks};
  const Index most = blocks.count() / turn + 1;  // then no piece has more than a block
  return dealt(blocks, std::min(turns, most) * turn, ranks, [&](Index n) { return std::min(n % turn, turn - 1 - n % turn); });
}

/// The rows' work: pairs that the mask keeps.
class Work {
 public:
  Work(const Mask& mask, Index length) : sums_(mask_kept_keys(mask, length, length)) {
    std::partial_sum(sums_.begin(), sums_.end(), sums_.begin());
    sums_.insert(sums_.begin(), 0);
  }
  Index of(const Rows& rows) const {
    return sums_[static_cast<std::size_t>(rows.end)] - sums_[static_cast<std::size_t>(rows.begin)];
  }
  Index of(const std::vector<Rows>& rows) const {
    return std::accumulate(rows.begin(), rows.end(), Index{0}, [this](Index sum, const Rows& some) { return sum + of(some); });
  }
  Index of_heaviest(const RowsOfRanks& all) const {
    Index most = 0;
    for (const std::vector<Rows>& rows : all) most = std::max(most, of(rows));
    return most;
  }
  Index total() const { return sums_.back(); }

 private:
  std::vector<Index> sums_;  // of the rows before each
};

/// The pieces by their work, the heaviest first, each to the rank with the least work among those that have not their number of pieces.
RowsOfRanks heaviest_first(const Blocks& blocks, Index pieces, int ranks, const Work& work) {
  const auto n = static_cast<std::size_t>(pieces);
  std::vector<Index> order(n), owners(n), loads(static_cast<std::size_t>(ranks)), held(loads.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::ranges::stable_sort(order, std::greater(), [&](Index p) { return work.of(blocks.piece(p, pieces)); });
  const Index most = pieces / ranks;
  for (const Index p : order) {
    std::size_t to = loads.size();
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
      if (held[rank] < most && (to == loads.size() || loads[rank] < loads[to])) to = rank;
    }
    owners[static_cast<std::size_t>(p)] = static_cast<Index>(to);
    loads[to] += work.of(blocks.piece(p, pieces));
    ++held[to];
  }
  return dealt(blocks, pieces, ranks, [&](Index p) { return owners[static_cast<std::size_t>(p)]; });
}

RowsOfRanks by_mask(const Blocks& blocks, const Mask& mask, int ranks) {
  const Work work(mask, blocks.length);
  RowsOfRanks best = contiguous(blocks, ranks);
  const auto balanced = [&] {  // doubles: pairs times 17 may pass 2^63
    return static_cast<double>(work.of_heaviest(best)) * 16 * ranks <= static_cast<double>(work.total()) * 17;
  };
  const auto offer = [&](RowsOfRanks other) {
    if (work.of_heaviest(other) < work.of_heaviest(best)) best = std::move(other);
  };
  if (!balanced()) offer(zig_zag(blocks, ranks, 1));
  for (Index pieces = 4 * Index{ranks}; !balanced() && pieces / 2 < blocks.count(); pieces *= 2)
    offer(heaviest_first(blocks, pieces, ranks, work));
  return best;
}

}  // namespace

RowsOfRanks rows_of_ranks(const ContextParallelOptions& cut, Index length, int ranks) {
  constexpr const char* function = "dist::rows_of_rank";
  check<OptionError>(length >= 0, function, "length must not be negative: got ", length);
  check<OptionError>(cut.block >= 1, function, "block must be at least 1: got ", cut.block);
  check<OptionError>(cut.turns >= 1, function, "turns must be at least 1: got ", cut.turns);
  const Blocks blocks{length, cut.block};
  switch (cut.layout) {
    case Layout::kContiguous:
      return contiguous(blocks, ranks);
    case Layout::kZigZag:
      return zig_zag(blocks, ranks, cut.turns);
    case Layout::kByMask:
      break;
  }
  return by_mask(blocks, cut.mask, ranks);
}

std::vector<Rows> rows_of_rank(const ContextParallelOptions& cut, Index length, int rank, int ranks) {
  check<OptionError>(rank >= 0 && rank < ranks, "dist::rows_of_rank", "rank must be at least 0 and below ", ranks, ": got ",
                     rank);
  return rows_of_ranks(cut, length, ranks)[static_cast<std::size_t>(rank)];
}

std::vector<Rows> ContextParallel::rows(Index length) const {
  return rows_of_rank(options_, length, transport_.rank(), transport_.size());
}

}  // namespace qkv::inline v0::dist
