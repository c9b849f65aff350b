#include "qkv/dist/reduce.h"

#include <algorithm>
#include <vector>

namespace qkv::inline v0::dist {
namespace {

/// Rank r owns [begin(r), begin(r + 1)) of n numbers.
struct Slices {
  std::size_t n;
  std::size_t ranks;
  std::size_t begin(std::size_t rank) const { return n / ranks * rank + std::min(rank, n % ranks); }
  template <class T> std::span<T> of(std::span<T> values, std::size_t rank) const {
    return values.subspan(begin(rank), begin(rank + 1) - begin(rank));
  }
};

template <class T> void reduce(Transport& transport, std::span<T> values) {
  const auto ranks = static_cast<std::size_t>(transport.size()), me = static_cast<std::size_t>(transport.rank());
  const Slices slices{values.size(), ranks};
  const std::span<T> own = slices.of(values, me);
  std::vector<T> received(own.size() * ranks);
  const auto part = [&](std::size_t rank) { return std::span(received).subspan(own.size() * rank, own.size()); };
  std::vector<Ticket> tickets;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    tickets.push_back(transport.receive(static_cast<int>(peer), std::as_writable_bytes(part(peer))));
    tickets.push_back(transport.send(static_cast<int>(peer), std::as_bytes(slices.of(values, peer))));
  }
  wait(transport, tickets);
  for (std::size_t i = 0; i < own.size(); ++i) {
    double sum = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) sum += static_cast<double>(rank == me ? own[i] : part(rank)[i]);
    own[i] = static_cast<T>(sum);
  }
  tickets.clear();
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    tickets.push_back(transport.receive(static_cast<int>(peer), std::as_writable_bytes(slices.of(values, peer))));
    tickets.push_back(transport.send(static_cast<int>(peer), std::as_bytes(own)));
  }
  wait(transport, tickets);
}

}  // namespace

void reduce_sum(Transport& transport, std::span<float> values) { reduce(transport, values); }
void reduce_sum(Transport& transport, std::span<double> values) { reduce(transport, values); }

}  // namespace qkv::inline v0::dist
