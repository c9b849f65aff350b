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

bool may_allocate() {
  ++allocations;
  if (allocations_left > 0) return allocations_left-- > 0;
  return allocations_left != 0;
}

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

/// `call` with memory out at its first, second ... allocation, until there is enough: it throws std::bad_alloc and
/// nothing else, and works right afterwards.
template <class Call> [[maybe_unused]] void expect_only_bad_alloc(const Call& call) {
  for (long allowed = 0;; ++allowed) {
    try {
      const FailingAllocations failing(allowed);
      return call();
    } catch (const std::bad_alloc&) {
    }
    call();
  }
}
}  // namespace

// GCC 12 sees through operator new and takes malloc and free for a mismatched pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return may_allocate() ? std::malloc(bytes) : nullptr;
}
// Tensors and scratch memory.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = nullptr;
  return may_allocate() && posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
