// Counts every allocation of a test program by replacing operator new, and can make one thread run out of memory. To be
// included by one file of a program.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

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
