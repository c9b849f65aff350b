// A transport that is another one, and says when it is used.
#pragma once

#include <functional>

#include "qkv/dist/transport.h"

namespace qkv::test {

class Watched final : public dist::Transport {
 public:
  /// used(bytes that are sent; 0 by receive and poll) before each call.
  Watched(Transport& inner, std::function<void(std::size_t)> used) : inner_(inner), used_(std::move(used)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  dist::Ticket send(int to, std::span<const std::byte> bytes) override {
    used_(bytes.size());
    return inner_.send(to, bytes);
  }
  dist::Ticket receive(int from, std::span<std::byte> bytes) override {
    used_(0);
    return inner_.receive(from, bytes);
  }
  bool poll(dist::Ticket ticket) override {
    used_(0);
    return inner_.poll(ticket);
  }

 private:
  Transport& inner_;
  std::function<void(std::size_t)> used_;
};

}  // namespace qkv::test
