// Ranks as threads: order, lengths, what is not sent, ranks that fail.
#include "qkv/dist/in_process.h"

#include <gtest/gtest.h>

#include <array>

#include "messages.h"

namespace qkv::dist {
namespace {

TEST(InProcess, MessagesBetweenTwoRanksKeepTheirOrder) {
  std::vector<std::size_t> counts(50);
  std::iota(counts.begin(), counts.end(), std::size_t{0});
  run_in_process(4, [&](Transport& transport) {
    ASSERT_EQ(transport.size(), 4);
    exchange_messages(transport, counts);
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
  EXPECT_THROW(lines.leave(7, "gone"), OptionError);
  EXPECT_THROW(lines.rank(0).send(2, {}), OptionError);
  EXPECT_THROW(lines.rank(0).receive(-1, {}), OptionError);
  EXPECT_THROW(lines.rank(0).poll({}), OptionError);
}

}  // namespace
}  // namespace qkv::dist
