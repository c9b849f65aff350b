// Counts every allocation of a test program by replacing operator new, and can make one thread run out of memory. To be
// included by one file of a program.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "qkv/context.h"

namespace {
std::atomic<long> allocations{0};
thread_local long allocations_left = -1;  // of this thread, until memory runs out; negative: no limit

/// Allows this thread `allowed` more allocations while the object lives.
class [[maybe_unused]] FailingAllocations {
 public:
  explicit FailingAllocations(long allowed) { allocations_left = allowed; }
  ~FailingAllocations() { allocations_left = -1; }
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;
};

/// After its first time a call allocates nothing.
template <class Call>
[[maybe_unused]] void expect_no_allocation_after_the_first(qkv::Context& context, const Call& call) {
  call();
  const long before = allocations.load();
  const std::size_t scratch = context.scratch_bytes();
  for (int repeat = 0; repeat < 4; ++repeat) call();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(context.scratch_bytes(), scratch);
}
}  // namespace

// GCC 12 sees through operator new and takes malloc and free for a mismatched pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(bytes);
}
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
