// The loops that measure the peak of reading (kernels/read_peak.h).
#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <vector>

#include "dispatch/kernels.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

TEST(ReadPeak, EveryLoopReadsEveryWordOnce) {
  for (const Index count : {64, 200, 1000, 4097}) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(count));
    for (std::size_t n = 0; n < words.size(); ++n) words[n] = n * n + 0x9E3779B97F4A7C15;
    const std::uint64_t sum = std::accumulate(words.begin(), words.end(), std::uint64_t{0});
    for_each_isa(1, [&](Context& context) {
      for (const ReadLoop loop : std::span(kernel_tables(context.isa()).attention.peak.read, kNumReadLoops))
        EXPECT_EQ(loop(words.data(), count), sum) << count;
    });
  }
}

}  // namespace
}  // namespace qkv::test
