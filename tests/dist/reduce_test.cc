// Sums over ranks: the f64 sum in order of ranks, rounded once, on every rank.
#include "qkv/dist/reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/random.h"
#include "qkv/dist/in_process.h"

namespace qkv::dist {
namespace {

std::vector<float> numbers(int rank, std::size_t count) {
  Random random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.uniform() - 0.5) * 1e3F;
  return values;
}

TEST(Reduce, EveryRankGetsTheSumInOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t count : {0U, 1U, 3U, 1000U}) {  // fewer numbers than ranks, and none
      std::vector<double> sums(count, 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<float> one = numbers(rank, count);
        for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<double>(one[i]);
      }
      std::vector<float> expected(sums.begin(), sums.end());
      run_in_process(ranks, [&](Transport& transport) {
        std::vector<float> mine = numbers(transport.rank(), count);
        reduce_sum(transport, std::span(mine));
        EXPECT_EQ(mine, expected) << ranks << " ranks, " << count;
      });
    }
  }
}

}  // namespace
}  // namespace qkv::dist
