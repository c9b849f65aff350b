// Messages of every length between all ranks: what every transport is held to.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "qkv/dist/transport.h"

namespace qkv::dist {

/// Every rank sends every rank messages of several lengths, which arrive in order.
inline void exchange_messages(Transport& transport, const std::vector<std::size_t>& counts) {
  std::vector<std::vector<std::uint32_t>> out, in;
  for (int peer = 0; peer < transport.size(); ++peer) {
    for (const std::size_t count : counts) {
      out.emplace_back(count);
      in.emplace_back(count, 0U);
      std::iota(out.back().begin(), out.back().end(), static_cast<std::uint32_t>(transport.rank() * 100 + peer));
    }
  }
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int peer = static_cast<int>(i / counts.size());
    tickets.push_back(transport.receive(peer, std::as_writable_bytes(std::span(in[i]))));
    tickets.push_back(transport.send(peer, std::as_bytes(std::span(out[i]))));
  }
  wait(transport, tickets);
  for (const Ticket ticket : tickets) EXPECT_TRUE(transport.poll(ticket)) << "complete stays complete";
  for (std::size_t i = 0; i < in.size(); ++i) {
    std::vector<std::uint32_t> expected(in[i].size());
    std::iota(expected.begin(), expected.end(),
        static_cast<std::uint32_t>(static_cast<int>(i / counts.size()) * 100 + transport.rank()));
    ASSERT_EQ(in[i], expected) << "message " << i;
  }
}

}  // namespace qkv::dist
