// Ranks as threads: order, lengths, what is not sent, ranks that fail.
#include "qkv/dist/in_process.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace qkv::dist {
namespace {

template <class T> std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

TEST(InProcess, MessagesBetweenTwoRanksKeepTheirOrder) {
  constexpr int kAllRanks = 4, kMessages = 50;
  run_in_process(kAllRanks, [&](Transport& transport) {
    ASSERT_EQ(transport.size(), kAllRanks);
    std::vector<std::vector<int>> out, in;
    std::vector<Ticket> tickets;
    for (int n = 0; n < kMessages; ++n) {
      for (int peer = 0; peer < kAllRanks; ++peer) {
        out.emplace_back(static_cast<std::size_t>(n), transport.rank() * 1000 + n);
        in.emplace_back(static_cast<std::size_t>(n), -1);
      }
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      const int peer = static_cast<int>(i) % kAllRanks;
      tickets.push_back(transport.receive(peer, bytes_of(in[i])));
      tickets.push_back(transport.send(peer, bytes_of(out[i])));
    }
    wait(transport, tickets);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const int peer = static_cast<int>(i) % kAllRanks, n = static_cast<int>(i) / kAllRanks;
      EXPECT_EQ(in[i], std::vector<int>(static_cast<std::size_t>(n), peer * 1000 + n));
    }
    for (const Ticket ticket : tickets) EXPECT_TRUE(transport.poll(ticket)) << "complete stays complete";
  });
}

TEST(InProcess, BytesAreReadWhenTheSenderPolls) {
  run_in_process(2, [](Transport& transport) {
    int value = 1;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    if (transport.rank() == 0) {
      const Ticket ticket = transport.send(1, bytes);
      value = 2;  // too early: what a rendezvous of MPI would send
      wait(transport, ticket);
    } else {
      wait(transport, transport.receive(0, bytes));
      EXPECT_EQ(value, 2);
    }
  });
}

TEST(InProcess, ALengthThatDiffersIsAnErrorThatNamesBoth) {
  try {
    run_in_process(2, [](Transport& transport) {
      std::array<std::byte, 5> bytes{};
      wait(transport,
          transport.rank() == 0 ? transport.send(1, std::span(bytes).first(3)) : transport.receive(0, bytes));
    });
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 sent 3 bytes, rank 1 expects 5"), std::string::npos)
        << error.what();
  }
}

TEST(InProcess, TheExceptionOfOneRankReachesTheCallerAndEndsTheOthers) {
  std::array<bool, 3> ended{};
  try {
    run_in_process(3, [&](Transport& transport) {
      if (transport.rank() == 1) throw ShapeError("q is missing");
      std::byte byte{};
      try {
        wait(transport, transport.receive(1, std::span(&byte, 1)));
      } catch (const TransportError& error) {
        ended[static_cast<std::size_t>(transport.rank())] =
            std::string(error.what()).find("q is missing") != std::string::npos;
        EXPECT_THROW(transport.send(1, {}), TransportError) << "and stays broken";
        throw;
      }
    });
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "q is missing");
  }
  EXPECT_TRUE(ended[0] && ended[2]);
}

TEST(InProcess, ARankThatReturnsWithoutSendingEndsWhoWaits) {
  EXPECT_THROW(run_in_process(2,
                   [](Transport& transport) {
                     std::byte byte{};
                     if (transport.rank() == 1) wait(transport, transport.receive(0, std::span(&byte, 1)));
                   }),
      TransportError);
}

TEST(InProcess, RefusesWhatIsNotThere) {
  EXPECT_THROW(run_in_process(0, [](Transport&) {}), OptionError);
  InProcess lines(2);
  EXPECT_THROW(lines.rank(2), OptionError);
  EXPECT_THROW(lines.rank(0).send(2, {}), OptionError);
  EXPECT_THROW(lines.rank(0).receive(-1, {}), OptionError);
  EXPECT_THROW(lines.rank(0).poll({}), OptionError);
}

}  // namespace
}  // namespace qkv::dist
