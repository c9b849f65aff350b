// Work too small for a region of threads stays on the caller's thread.
#include "core/threads/region.h"

#include <gtest/gtest.h>

#include <vector>

namespace qkv {
namespace {

/// Counts the regions that reach it.
class CountingExecutor final : public Executor {
 public:
  int concurrency() const override { return 2; }
  void run(int workers, const std::function<void(int)>& body) override {
    ++regions;
    for (int worker = 0; worker < workers; ++worker) body(worker);
  }
  int regions = 0;
};

TEST(Region, OpensOnlyWhereTheWorkIsWorthIt) {
  const auto executor = std::make_shared<CountingExecutor>();
  Context context({.threads = 2, .isa = std::nullopt, .executor = executor});
  std::vector<Index> visited;
  const auto note = [&visited](Index item, int) { visited.push_back(item); };
  const double limit = context.impl().region_flops;
  parallel_for_flops(context, 3, limit * 0.99, note);
  EXPECT_EQ(executor->regions, 0);
  parallel_for_flops(context, 3, limit, note);
  EXPECT_EQ(executor->regions, 1);
  EXPECT_EQ(visited, (std::vector<Index>{0, 1, 2, 0, 1, 2})) << "every item once, in order, either way";
}

}  // namespace
}  // namespace qkv
