// The core when memory is out, or must not be asked for.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "core/threads/scratch.h"
#include "qkv/context.h"
#include "support/allocations.h"

namespace {

/// Freeing must work when memory is out, and in a destructor.
TEST(Scratch, FreeingAllocatesNothing) {
  auto pool = std::make_unique<qkv::ScratchPool>();
  for (int round = 0; round < 2; ++round) {
    std::vector<qkv::ScratchPool::Block> blocks;
    for (std::size_t bytes = 64; bytes < 10000; bytes *= 2) blocks.push_back(pool->take(bytes));
    const qkv::ScratchPool::Block kept = blocks.back();
    blocks.pop_back();
    for (const qkv::ScratchPool::Block& block : blocks) pool->give_back(block);
    const long before = allocations.load();
    pool->trim();
    pool->give_back(kept);
    if (round == 1) pool.reset();
    EXPECT_EQ(allocations.load(), before);
  }
}

/// No memory for a thread is no reason to end: those that run do all bodies.
TEST(ThreadPool, RunsOnTheThreadsThatMemoryAllows) {
  for (long allowed = 0; allowed < 24; ++allowed) {
    const auto pool = qkv::make_thread_pool(6);
    std::array<std::atomic<int>, 9> counts{};
    const std::function<void(int)> body = [&](int n) { ++counts[static_cast<std::size_t>(n)]; };
    const FailingAllocations failing(allowed);
    try {
      pool->run(9, body);
    } catch (const std::bad_alloc&) {
      EXPECT_LT(allowed, 1) << "there was memory for the team itself";
      for (const auto& count : counts) EXPECT_EQ(count.load(), 0);
      continue;
    }
    for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
  }
}

}  // namespace
