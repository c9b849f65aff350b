// One message to and from every rank, of pieces of arrays.
#pragma once

#include <vector>

#include "dist/arrays.h"
#include "qkv/dist/context_parallel.h"

namespace qkv::inline v0::dist {

/// The rows of every rank, and how many there are. A rank's own ("local") arrays hold its rows one after the other,
/// whole ones all.
struct Sequence {
  std::vector<std::vector<Rows>> of_rank;
  Index length = 0;

  std::vector<Rows> all() const { return {{0, length}}; }
  Index count(std::size_t rank) const;
};

/// rows_of_rank of all ranks.
std::vector<std::vector<Rows>> rows_of_ranks(const ContextParallelOptions& cut, Index length, int ranks);
/// Rows behind the others; neighbours become one.
void append(std::vector<Rows>& rows, const Rows& more);
/// The rows in both lists, ascending.
std::vector<Rows> rows_in_both(const std::vector<Rows>& a, const std::vector<Rows>& b);
/// body(piece of x, rows) for each range of `wanted`, in the local array x of `rows`.
template <class Body> void each_local_piece(
    const AnyView& x, const std::vector<Rows>& rows, const std::vector<Rows>& wanted, const Body& body) {
  Index begin = 0;
  for (const Rows& mine : rows) {
    for (const Rows& some : rows_in_both({mine}, wanted)) {
      body(sliced(x, 2, begin + some.begin - mine.begin, begin + some.end - mine.begin), some);
    }
    begin += mine.count();
  }
}

class Exchange {
 public:
  explicit Exchange(Transport& transport);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  /// A transfer that was started ends before its bytes go away, also where this rank's work has thrown.
  ~Exchange();

  /// The next piece of the message to a rank, and where the next one of the message from it is written. Copied,
  /// expected to stay.
  void send(std::size_t rank, const AnyView& piece);
  void expect(std::size_t rank, const AnyView& piece);
  void start();
  /// Moves messages on; whether all are done.
  bool poll();
  /// Writes what came, in order of ranks.
  void finish(bool accumulate = false);

 private:
  void wait();

  struct Message {
    std::vector<std::byte> out, in;
    std::vector<AnyView> pieces;  // of `in`
  };
  Transport& transport_;
  std::vector<Message> of_rank_;
  std::vector<Ticket> tickets_;
};

/// Bytes as a row of numbers that are copied, never added.
inline AnyView view_of_bytes(const void* data, std::size_t count) {
  AnyView row;
  row.data = static_cast<std::byte*>(const_cast<void*>(data));
  row.type = StoredType::kInt8;
  row.rank = 1;
  row.sizes[0] = static_cast<Index>(count);
  row.strides[0] = 1;
  return row;
}

/// As many numbers of every rank, on every rank.
template <class E> std::vector<std::vector<E>> from_all(Transport& transport, const std::vector<E>& mine) {
  Exchange exchange(transport);
  std::vector<std::vector<E>> all(static_cast<std::size_t>(transport.size()), std::vector<E>(mine.size()));
  const auto bytes = [](const std::vector<E>& of) { return view_of_bytes(of.data(), of.size() * sizeof(E)); };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    exchange.send(rank, bytes(mine));
    exchange.expect(rank, bytes(all[rank]));
  }
  exchange.start();
  exchange.finish();
  return all;
}

}  // namespace qkv::inline v0::dist
