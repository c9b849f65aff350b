// Rows that are dealt by a mask: every rank has about the same pairs, and as many rows, where contiguous and zig-zag have not.
#include <gtest/gtest.h>

#include "qkv/dist/context_parallel.h"
#include "qkv/dist/in_process.h"
#include "support/errors.h"

namespace qkv::test {
namespace {

using dist::ContextParallelOptions;
using dist::Layout;
using dist::Rows;

/// Pairs (i, j) that the mask keeps, by rank: counted one by one.
std::vector<Index> pairs_of_ranks(const ContextParallelOptions& cut, const Mask& mask, Index length, int ranks) {
  Tensor<std::uint8_t> keep({1, 1, length, length});
  mask_to_dense(mask, keep);
  std::vector<Index> pairs;
  std::vector<int> seen(static_cast<std::size_t>(length));
  for (int rank = 0; rank < ranks; ++rank) {
    pairs.push_back(0);
    for (const Rows& rows : dist::rows_of_rank(cut, length, rank, ranks)) {
      for (Index i = rows.begin; i < rows.end; ++i) {
        ++seen[static_cast<std::size_t>(i)];
        const std::uint8_t* row = keep.data() + i * length;
        pairs.back() += std::count(row, row + length, std::uint8_t{1});
      }
    }
  }
  EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(length), 1)) << "every row lies on one rank";
  return pairs;
}

/// The heaviest rank's pairs, as a share of the mean.
double heaviest(const std::vector<Index>& pairs) {
  double most = 0, sum = 0;
  for (const Index count : pairs) most = std::max(most, static_cast<double>(count)), sum += static_cast<double>(count);
  return most * static_cast<double>(pairs.size()) / sum;
}

Mask documents() { return Mask::documents(std::vector<Index>{0, 100, 1500, 1530, 2300, 2431, 4000}) & Mask::causal(); }

TEST(ByMask, EveryRankHasTheSameWork) {
  constexpr Index length = 4000;
  const std::pair<const char*, Mask> masks[] = {
      {"everything", {}},
      {"causal", Mask::causal()},
      {"window", Mask::window(300, 0)},
      {"documents", documents()},
      {"window or first", (Mask::window(100, 0) | Mask::first(900)) & Mask::causal()}};
  for (const auto& [name, mask] : masks) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(ranks) + " ranks");
      const ContextParallelOptions cut{.layout = Layout::kByMask, .mask = mask};
      EXPECT_LE(heaviest(pairs_of_ranks(cut, mask, length, ranks)), 17.0 / 16);
      Index fewest = length, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Index count = 0;
        for (const Rows& rows : dist::rows_of_rank(cut, length, rank, ranks)) count += rows.count();
        fewest = std::min(fewest, count), most = std::max(most, count);
      }
      EXPECT_LE(most - fewest, length / ranks / 4) << "rows differ by a piece at most";
    }
  }
  EXPECT_GT(heaviest(pairs_of_ranks({.layout = Layout::kContiguous}, documents(), length, 4)), 1.2);
  EXPECT_GT(heaviest(pairs_of_ranks({.layout = Layout::kZigZag}, documents(), length, 4)), 1.1);
}

TEST(ByMask, TakesTheSimplestCutThatIsInBalance) {
  for (const int ranks : {2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto dealt = [&](Layout layout, const Mask& mask) {
        return dist::rows_of_rank({.layout = layout, .mask = mask}, 4096, rank, ranks);
      };
      EXPECT_EQ(dealt(Layout::kByMask, {}), dealt(Layout::kContiguous, {}));
      EXPECT_EQ(dealt(Layout::kByMask, Mask::window(64, 64)), dealt(Layout::kContiguous, {}));
      EXPECT_EQ(dealt(Layout::kByMask, Mask::causal()), dealt(Layout::kZigZag, {}));
    }
  }
  EXPECT_TRUE(dist::rows_of_rank({.layout = Layout::kByMask, .mask = Mask::causal()}, 0, 1, 2).empty());
  EXPECT_THROW(dist::rows_of_rank({.layout = Layout::kByMask, .mask = documents()}, 99, 0, 2), Error);
}

// A million tokens: the verdicts are taken on large tiles.
TEST(ByMask, LongSequencesAreCountedByTheirEdges) {
  constexpr Index length = Index{1} << 20;
  const auto rows =
      dist::rows_of_rank({.layout = Layout::kByMask, .mask = Mask::causal() & Mask::window(4096, 0)}, length, 1, 4);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0], (Rows{length / 4, length / 2}));
}

// Masks that read alike and keep other pairs.
TEST(ByMask, RanksWithOtherRowsSaySo) {
  std::vector<std::string> texts(2);
  dist::run_in_process(2, [&](dist::Transport& transport) {
    Context context({.threads = 1, .executor = nullptr});
    const Index end = transport.rank() == 0 ? 400 : 24;
    const Mask mask = Mask::documents(std::vector<Index>{0, end, 512}) & Mask::causal();
    dist::ContextParallel cp(transport, {.layout = Layout::kByMask, .mask = mask}, context);
    Index count = 0;
    for (const Rows& rows : cp.rows(512)) count += rows.count();
    Tensor<float> x({1, 2, count, 8}), out({1, 2, count, 8});
    texts[static_cast<std::size_t>(transport.rank())] = text_of<Error>([&] { cp.forward(x, x, x, out, {}); });
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0].find("layout"), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace qkv::test
