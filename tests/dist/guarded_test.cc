// Ranks that end, stop answering or are slow: what the others hear, and when.
#include "qkv/dist/guarded.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "qkv/dist/in_process.h"

namespace qkv::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTimeout = 0.4;  // seconds
constexpr double kLimit = 10;     // what the tool promises: the guard's timeout is far below, so a machine may be busy

/// Every rank on a thread with both of its transports; what each threw, empty where it did not.
std::vector<std::string> run(int ranks, const std::function<void(Transport& data, Transport& control)>& body) {
  InProcess data(ranks), control(ranks);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(data.rank(rank), control.rank(rank));
      } catch (const TransportError& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

void around_the_ring(Transport& transport) {
  const int rank = transport.rank(), size = transport.size();
  int got = -1;
  const Ticket both[] = {transport.send((rank + 1) % size, std::as_bytes(std::span(&rank, 1))),
      transport.receive((rank + size - 1) % size, std::as_writable_bytes(std::span(&got, 1)))};
  wait(transport, both);
  EXPECT_EQ(got, (rank + size - 1) % size);
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(Guarded, ChangesNothingWhileAllAreThere) {
  for (const int ranks : {1, 2, 5}) {
    const auto texts = run(ranks, [](Transport& data, Transport& control) {
      for (int again = 0; again < 3; ++again) {  // the control transport is clean after finish()
        Guarded guarded(data, control, {.timeout = kLimit});
        around_the_ring(guarded);
        guarded.finish();
      }
    });
    EXPECT_EQ(texts, std::vector<std::string>(static_cast<std::size_t>(ranks)));
  }
}

TEST(Guarded, ASlowRankIsNoFailure) {
  const auto texts = run(3, [](Transport& data, Transport& control) {
    Guarded guarded(data, control, {.timeout = kTimeout});
    if (data.rank() == 1) sleep(3 * kTimeout);  // work without a poll
    around_the_ring(guarded);
    if (data.rank() == 2) sleep(3 * kTimeout);  // and the others wait at the end
    guarded.finish();
  });
  EXPECT_EQ(texts, std::vector<std::string>(3));
}

TEST(Guarded, ARankThatStopsAnsweringEndsAllOthersInTime) {
  std::atomic<int> ended{0};
  const auto start = Clock::now();
  const auto texts = run(4, [&](Transport& data, Transport& control) {
    if (data.rank() == 2) {
      // Neither sends nor closes anything, as a process that was killed or a host that lost its cable.
      while (ended < 3 && Clock::now() - start < std::chrono::duration<double>(2 * kLimit)) sleep(0.01);
      return;
    }
    struct Count {
      ~Count() { ++count; }
      std::atomic<int>& count;
    } const count{ended};
    Guarded guarded(data, control, {.timeout = kTimeout});
    around_the_ring(guarded);
    guarded.finish();
  });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), kLimit);
  for (const int rank : {0, 1, 3}) {
    const std::string& text = texts[static_cast<std::size_t>(rank)];
    EXPECT_NE(text.find("rank 2 of 4"), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find("0.4 s"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Guarded, ARankThatFailsSaysWhy) {
  const auto texts = run(4, [](Transport& data, Transport& control) {
    Guarded guarded(data, control, {.timeout = kLimit});
    if (data.rank() == 3) return guarded.fail("out of memory");
    around_the_ring(guarded);
    guarded.finish();
  });
  for (const int rank : {0, 1, 2}) {
    const std::string& text = texts[static_cast<std::size_t>(rank)];
    EXPECT_NE(text.find("rank 3 of 4 has ended: out of memory"), std::string::npos) << text;
  }
}

TEST(Guarded, AnExceptionThatPassesAGuardEndsTheOthers) {
  const auto texts = run(2, [](Transport& data, Transport& control) {
    Guarded guarded(data, control, {.timeout = kLimit});
    if (data.rank() == 0) throw TransportError("mine");
    around_the_ring(guarded);
    guarded.finish();
  });
  EXPECT_EQ(texts[0], "mine");
  EXPECT_NE(texts[1].find("rank 0 of 2 has ended: it ended before the others"), std::string::npos) << texts[1];
}

TEST(Guarded, WhatBreaksTheDataIsToldToAll) {
  const auto texts = run(3, [](Transport& data, Transport& control) {
    Guarded guarded(data, control, {.timeout = kLimit});
    std::vector<std::byte> bytes(4);
    // Rank 1 expects more than rank 0 sends; rank 2 waits for rank 1, which will not send.
    if (data.rank() == 0) wait(guarded, guarded.send(1, std::span(bytes).first(3)));
    if (data.rank() == 1) wait(guarded, guarded.receive(0, bytes));
    if (data.rank() == 2) wait(guarded, guarded.receive(1, bytes));
    guarded.finish();
  });
  for (const std::string& text : texts)
    EXPECT_NE(text.find("rank 0 sent 3 bytes, rank 1 expects 4"), std::string::npos) << text;
}

TEST(Guarded, RefusesWhatDoesNotFit) {
  InProcess two(2), three(3);
  EXPECT_THROW(Guarded(two.rank(0), three.rank(0)), OptionError);
  EXPECT_THROW(Guarded(two.rank(0), two.rank(1)), OptionError);
  EXPECT_THROW(Guarded(two.rank(0), two.rank(0), {.timeout = 0}), OptionError);
}

}  // namespace
}  // namespace qkv::dist
