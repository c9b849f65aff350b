// Counts every allocation of a test program by replacing operator new, and can let memory run out. To be included by
// one file of a program.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <new>
#include <vector>

#include "core/threads/context_impl.h"
#include "qkv/tensor.h"

namespace {
std::atomic<long> allocations{0};
std::atomic<long> blocks_held{0};        // of operator new
std::atomic<long> allocations_left{-1};  // of all threads together, until memory runs out; negative: no limit
std::atomic<long> refusals{0};
std::atomic<bool> one_refusal{false};
thread_local bool spared = false;

/// Whom memory fails, and how long.
enum class Refused {
  kAll,    ///< every allocation from there on
  kOne,    ///< that one alone
  kOthers  ///< every allocation from there on, of other threads than the caller's
};

bool may_allocate() {
  ++allocations;
  if (spared) return true;
  for (long left = allocations_left; left != 0;) {
    if (left < 0 || allocations_left.compare_exchange_weak(left, left - 1)) return true;
  }
  ++refusals;
  if (one_refusal) allocations_left = -1;
  return false;
}

/// Allows `allowed` more allocations while the object lives.
class [[maybe_unused]] FailingAllocations {
 public:
  explicit FailingAllocations(long allowed, Refused refused = Refused::kAll) : before_(refusals) {
    spared = refused == Refused::kOthers;
    one_refusal = refused == Refused::kOne;
    allocations_left = allowed;
  }
  ~FailingAllocations() {
    allocations_left = -1;
    spared = false;
  }
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;
  bool refused() const { return refusals != before_; }

 private:
  long before_;
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
/// nothing else, or does without, and works right afterwards. What it holds besides stays the same.
template <class Call> [[maybe_unused]] void expect_only_bad_alloc(
    const Call& call, std::initializer_list<Refused> kinds = {Refused::kAll, Refused::kOne, Refused::kOthers}) {
  SCOPED_TRACE("memory is out");  // GoogleTest keeps the memory of its first one
  call();
  call();
  const long held = blocks_held.load();
  for (const Refused kind : kinds) {
    bool refused = true;
    for (long allowed = 0; refused; ++allowed) {
      SCOPED_TRACE(testing::Message() << allowed << " allocations of kind " << static_cast<int>(kind));
      try {
        const FailingAllocations failing(allowed, kind);
        try {
          call();
        } catch (...) {
          refused = failing.refused();
          throw;
        }
        refused = failing.refused();
      } catch (const std::bad_alloc&) {
        EXPECT_TRUE(refused);
      }
      call();
    }
  }
  EXPECT_EQ(blocks_held.load(), held);
}

/// A call, and its answer in numbers.
struct [[maybe_unused]] AnsweringCall {
  const char* name;
  std::function<std::vector<double>()> answer;
};

/// The elements of ranges, one after another.
template <class... Ranges> [[maybe_unused]] std::vector<double> numbers_of(const Ranges&... ranges) {
  std::vector<double> all;
  const auto add = [&](const auto& range) {
    for (const auto& x : range) all.push_back(static_cast<double>(x));
  };
  (add(ranges), ...);
  return all;
}

/// Each of them as above; where it answers, the answer is the same.
[[maybe_unused]] void expect_only_bad_alloc_of(std::initializer_list<AnsweringCall> calls) {
  for (const AnsweringCall& call : calls) {
    SCOPED_TRACE(call.name);
    const std::vector<double> expected = call.answer();
    EXPECT_FALSE(expected.empty());
    bool same = true;
    expect_only_bad_alloc([&] { same = same && call.answer() == expected; });
    EXPECT_TRUE(same);
  }
}

/// Two threads that share even the least work.
struct [[maybe_unused]] TwoThreads {
  TwoThreads() { context.impl().region_flops = 0; }
  operator qkv::Context&() { return context; }
  qkv::Context context{{.threads = 2}};
};
}  // namespace

// GCC 12 sees through operator new and takes malloc and free for a mismatched pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = may_allocate() ? std::malloc(bytes) : nullptr;
  blocks_held += memory != nullptr;
  return memory;
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
void operator delete(void* memory) noexcept {
  blocks_held -= memory != nullptr;
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
