// Context: what it reads, how items are distributed, and scratch memory that is allocated once.
#include "qkv/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu.h"
#include "core/threads/available_threads.h"
#include "core/threads/scratch.h"
#include "qkv/error.h"
#include "support/errors.h"

namespace {

using qkv::Context;
using qkv::Index;
using qkv::Isa;

// Sets a variable, and restores its value.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Environment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string error_of(const char* variable, const char* value) {
  const Environment set(variable, value);
  return qkv::test::text_of<qkv::OptionError>([] { const Context context; });
}

TEST(Context, ReadsThreads) {
  {
    const Environment set("QKV_THREADS", "3");
    EXPECT_EQ(Context().threads(), 3);
    EXPECT_EQ(Context({.threads = 2}).threads(), 2);  // an option overrides the environment
  }
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const Environment set("QKV_THREADS", unset);
    EXPECT_EQ(Context().threads(), qkv::available_threads());
  }
  for (const char* bad : {"0", "-1", "two", "2x", " 2", "1e3", "99999999999"}) {
    EXPECT_EQ(error_of("QKV_THREADS", bad),
        "[Context] QKV_THREADS must be a whole number from 1 to 1024: got \"" + std::string(bad) + "\"");
  }
  EXPECT_THROW(Context({.threads = -1}), qkv::OptionError);
}

TEST(Context, ReadsIsa) {
  for (const Isa isa : qkv::supported_isas()) {
    const Environment set("QKV_ISA", std::string(qkv::isa_name(isa)).c_str());
    EXPECT_EQ(Context().isa(), isa);
    EXPECT_EQ(qkv::parse_isa(qkv::isa_name(isa)), isa);
  }
  {
    const Environment set("QKV_ISA", nullptr);
    EXPECT_EQ(Context().isa(), qkv::supported_isas().back());
    EXPECT_EQ(Context({.isa = Isa::kScalar}).isa(), Isa::kScalar);
  }
  const std::string text = error_of("QKV_ISA", "sse9");
  qkv::test::expect_parts(text, {"QKV_ISA", "\"sse9\""});
  for (const Isa isa : qkv::supported_isas()) qkv::test::expect_parts(text, {qkv::isa_name(isa)});
}

TEST(Context, ReadsBits) {
  using qkv::Bits;
  {
    const Environment set("QKV_BITS", "invariant");
    EXPECT_EQ(Context().bits(), Bits::kInvariant);
    EXPECT_EQ(Context({.bits = Bits::kFast}).bits(), Bits::kFast);  // an option overrides the environment
  }
  {
    const Environment set("QKV_BITS", nullptr);
    EXPECT_EQ(Context().bits(), Bits::kFast);
  }
  for (const Bits bits : {Bits::kFast, Bits::kInvariant}) EXPECT_EQ(qkv::parse_bits(qkv::bits_name(bits)), bits);
  EXPECT_EQ(error_of("QKV_BITS", "same"), "[Context] QKV_BITS: [bits] must be \"fast\" or \"invariant\": got \"same\"");
}

TEST(Isa, ScalarIsAlwaysThereAndOrderIsAscending) {
  const auto& isas = qkv::supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kScalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(Isa, EveryCandidateRunsOrSaysWhyNot) {
  std::size_t running = 0;
  for (const qkv::IsaCandidate& candidate : qkv::isa_candidates()) {
    if (candidate.obstacle.empty()) {
      EXPECT_EQ(qkv::supported_isas().at(running++), candidate.isa);
    } else {
      EXPECT_THROW(qkv::parse_isa(qkv::isa_name(candidate.isa)), qkv::OptionError) << candidate.obstacle;
    }
  }
  EXPECT_EQ(running, qkv::supported_isas().size());
}

// Executors that an application might provide.
class InOrder : public qkv::Executor {
 public:
  int concurrency() const override { return 4; }
  void run(int workers, const std::function<void(int)>& body) override {
    ++regions;
    for (int n = 0; n < workers; ++n) body(n);
  }
  int regions = 0;
};

class Backwards : public qkv::Executor {
 public:
  int concurrency() const override { return 4; }
  void run(int workers, const std::function<void(int)>& body) override {
    for (int n = workers - 1; n >= 0; --n) body(n);
  }
};

std::vector<std::shared_ptr<qkv::Executor>> executors() {
  return {
      std::make_shared<InOrder>(), std::make_shared<Backwards>(), qkv::make_thread_pool(4), qkv::make_thread_pool(1)};
}

TEST(ParallelFor, CallsEveryItemOnceOnValidWorkers) {
  for (const auto& executor : executors()) {
    Context context({.executor = executor});
    EXPECT_EQ(context.threads(), executor->concurrency());
    for (const Index items : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(items));
      std::atomic<bool> bad_worker{false};
      context.parallel_for(items, [&](Index item, int worker) {
        ++calls[static_cast<std::size_t>(item)];
        if (worker < 0 || worker >= context.threads()) bad_worker = true;
      });
      for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
      EXPECT_FALSE(bad_worker);
    }
  }
}

TEST(ParallelFor, OptionLimitsAnInjectedExecutor) {
  const auto executor = std::make_shared<InOrder>();
  EXPECT_EQ(Context({.threads = 2, .executor = executor}).threads(), 2);
  EXPECT_EQ(Context({.threads = 9, .executor = executor}).threads(), 4);
  Context context({.threads = 1, .executor = executor});
  context.parallel_for(5, [](Index, int) {});
  EXPECT_EQ(executor->regions, 0);  // one worker needs no executor
}

/// Memory is made for each worker, so a claim beyond all machines is not believed.
class Boaster : public InOrder {
 public:
  int concurrency() const override { return 1 << 30; }
};
TEST(ParallelFor, AnExecutorThatClaimsTooMuchIsCapped) {
  Context context({.executor = std::make_shared<Boaster>()});
  EXPECT_EQ(context.threads(), 1024);
  std::atomic<int> calls{0};
  context.parallel_for(5, [&](Index, int worker) { calls += worker < 1024; });
  EXPECT_EQ(calls.load(), 5);
}

TEST(ParallelFor, AWorkerTakesItemsInAscendingOrder) {
  Context context({.threads = 3});
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<Index>> taken(3);
    context.parallel_for(200, [&](Index item, int worker) { taken[static_cast<std::size_t>(worker)].push_back(item); });
    for (const auto& items : taken) EXPECT_TRUE(std::is_sorted(items.begin(), items.end()));
  }
}

// As backward does: an item waits until its neighbour has added, so that sums have one order.
TEST(ParallelFor, AnItemMayWaitForASmallerOne) {
  for (const auto& executor : executors()) {
    Context context({.executor = executor});
    for (int round = 0; round < 20; ++round) {
      std::atomic<Index> turn{0};
      std::vector<Index> order;
      context.parallel_for(64, [&](Index item, int) {
        while (turn.load(std::memory_order_acquire) != item) std::this_thread::yield();
        order.push_back(item);
        turn.store(item + 1, std::memory_order_release);
      });
      ASSERT_EQ(order.size(), 64U);
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    }
  }
}

TEST(ParallelFor, ExceptionCancelsWhatIsNotClaimed) {
  for (const auto& executor : executors()) {
    Context context({.executor = executor});
    std::atomic<Index> ran{0};
    constexpr Index kItems = 1000000;
    const auto run = [&] {
      context.parallel_for(kItems, [&](Index item, int) {
        ++ran;
        if (item == 10) throw std::runtime_error("ten");
      });
    };
    EXPECT_EQ(qkv::test::text_of<std::runtime_error>(run), "ten");
    EXPECT_GE(ran.load(), 11);  // claimed in ascending order, so 0 .. 10 ran
    EXPECT_LT(ran.load(), kItems);
    std::atomic<Index> after{0};
    context.parallel_for(7, [&](Index, int) { ++after; });
    EXPECT_EQ(after.load(), 7);
  }
}

TEST(ParallelFor, NestedCallsRunOnTheirOwnThread) {
  Context context({.threads = 3});
  Context other({.threads = 3});
  for (Context* inner : {&context, &other}) {
    std::atomic<int> calls{0};
    std::atomic<bool> moved{false};
    context.parallel_for(6, [&](Index, int) {
      const auto self = std::this_thread::get_id();
      inner->parallel_for(5, [&](Index, int worker) {
        ++calls;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // long enough for another thread to arrive
        if (std::this_thread::get_id() != self || worker != 0) moved = true;
      });
    });
    EXPECT_EQ(calls.load(), 30);
    EXPECT_FALSE(moved);
  }
}

TEST(ParallelFor, SecondCallerRunsOnItsOwnThread) {
  Context context({.threads = 2});
  std::atomic<bool> second_done{false};
  std::atomic<bool> moved{false};
  std::thread second;
  context.parallel_for(2, [&](Index item, int) {
    if (item != 0) return;
    second = std::thread([&] {
      const auto self = std::this_thread::get_id();
      context.parallel_for(8, [&](Index, int) {
        if (std::this_thread::get_id() != self) moved = true;
      });
      second_done = true;
    });
    while (!second_done) std::this_thread::yield();  // the first region is still running
  });
  second.join();
  EXPECT_FALSE(moved);
}

TEST(ParallelFor, ASerialRegionThatThrowsLeavesTheContextWhole) {
  Context context({.threads = 2});
  const auto bad = [](Index, int) { throw std::logic_error("x"); };
  EXPECT_THROW(context.parallel_for(1, bad), std::logic_error);
  EXPECT_THROW(context.parallel_for(5, bad), std::logic_error);
  std::atomic<int> arrived{0};
  context.parallel_for(2, [&](Index, int) {  // two threads again: neither the flag nor the lock is still held
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(Context, DefaultIsOne) { EXPECT_EQ(&Context::default_context(), &Context::default_context()); }

TEST(Scratch, IsAlignedAndReused) {
  Context context({.threads = 1});
  std::byte* first = nullptr;
  {
    const auto lease = qkv::borrow_scratch(context, 1000);
    first = lease.data();
    EXPECT_GE(lease.bytes(), 1000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
    EXPECT_NE(qkv::borrow_scratch(context, 1000).data(), first);
  }
  const std::size_t held = context.scratch_bytes();
  EXPECT_GE(held, 2000U);
  const auto again = qkv::borrow_scratch(context, 900);
  EXPECT_EQ(context.scratch_bytes(), held);
}

TEST(Scratch, TakesTheSmallestThatFits) {
  Context context({.threads = 1});
  std::byte* small = nullptr;
  {
    const auto large = qkv::borrow_scratch(context, 1 << 20);
    const auto lease = qkv::borrow_scratch(context, 4096);
    small = lease.data();
  }
  EXPECT_EQ(qkv::borrow_scratch(context, 4000).data(), small);
}

TEST(Scratch, SecondCallOfAShapeAllocatesNothing) {
  Context context({.threads = 2});
  const auto call = [&](std::size_t scale) {
    const auto a = qkv::borrow_scratch(context, 100 * scale);
    const auto b = qkv::borrow_scratch(context, 300 * scale);
    { const auto c = qkv::borrow_scratch(context, 50 * scale); }
    const auto d = qkv::borrow_scratch(context, 50 * scale);
  };
  for (const std::size_t scale : {1U, 1000U, 7U}) call(scale);
  const std::size_t held = context.scratch_bytes();
  for (const std::size_t scale : {7U, 1U, 1000U, 1U, 7U, 1000U}) call(scale);
  EXPECT_EQ(context.scratch_bytes(), held);
}

TEST(Scratch, TrimFreesOnlyWhatNobodyHolds) {
  Context context({.threads = 1});
  const auto held = qkv::borrow_scratch(context, 64);
  { const auto gone = qkv::borrow_scratch(context, 6400); }
  context.trim();
  EXPECT_EQ(context.scratch_bytes(), 64U);
}

TEST(Scratch, LeasesMoveAndNothingCostsNothing) {
  Context context({.threads = 1});
  EXPECT_EQ(qkv::borrow_scratch(context, 0).data(), nullptr);
  EXPECT_EQ(context.scratch_bytes(), 0U);
  auto a = qkv::borrow_scratch(context, 64);
  std::byte* data = a.data();
  qkv::ScratchLease b = std::move(a);
  EXPECT_EQ(b.data(), data);
  b = qkv::ScratchLease();
  EXPECT_EQ(qkv::borrow_scratch(context, 64).data(), data);  // it was returned
}

TEST(Scratch, ConcurrentLeasesAreApart) {
  Context context({.threads = 2});
  std::vector<std::thread> threads;
  std::atomic<bool> shared{false};
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&, n] {
      for (int round = 0; round < 500; ++round) {
        const auto lease = qkv::borrow_scratch(context, 256);
        int* mine = lease.as<int>();
        mine[0] = n;
        mine[63] = round;
        if (mine[0] != n || mine[63] != round) shared = true;  // and ThreadSanitizer sees any sharing
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared);
}

}  // namespace
