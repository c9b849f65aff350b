// Keys in chunks, on their way from the ranks that own them to those that need them: who gets which rows from whom, and the messages
// of one chunk. Not: what is computed (by_chunks.h).
//
//   rank 1's keys     ring        1 -> 2 -> 3 -> 0               their gradients     1 <- 2 <- 3 <- 0
//                     all-gather  1 -> 2, 1 -> 3, 1 -> 0                             1 <- 2, 1 <- 3, 1 <- 0
//
// A rank gets each row once. Two ranks may send keys one way and gradients the other, so both ends start their messages in one order: a
// step sends the next chunk's keys before the last chunk's gradients.
#pragma once

#include "attention/plan/carried.h"
#include "dist/call.h"

namespace qkv::inline v0::dist {

/// Rows of a chunk that one rank owns, and the ranks that need some of them.
struct RoutedRows {
  Rows rows;
  int owner;
  std::vector<int> others;  // the ring's order: the rank after the owner first
  bool passed_on;           // from neighbour to neighbour; otherwise the owner serves each

  /// Whom rank `me` gets the keys from, and sends their gradients to: one at most.
  std::vector<int> toward_owner(int me) const {
    const auto at = std::ranges::find(others, me);
    if (at == others.end()) return {};
    return {passed_on && at != others.begin() ? *(at - 1) : owner};
  }
  /// Whom it sends the keys to, and gets their gradients from; ascending where they are many.
  std::vector<int> away_from_owner(int me) const {
    if (!passed_on) return me == owner ? ascending() : std::vector<int>();
    const auto next = me == owner ? others.begin() : std::ranges::find(others, me);
    if (me != owner && next == others.end()) return {};
    const auto to = me == owner ? next : next + 1;
    return to == others.end() ? std::vector<int>() : std::vector<int>{*to};
  }

 private:
  std::vector<int> ascending() const {
    std::vector<int> ranks = others;
    std::ranges::sort(ranks);
    return ranks;
  }
};

struct RoutedChunk {
  Rows rows;
  std::vector<RoutedRows> parts;  // by ascending rows
  bool needed;                    // by this rank's queries
};

/// The chunks of a call, of `step` keys but for the last; one without keys where there are none.
template <class T>
std::vector<RoutedChunk> routed_chunks(const ParallelCall<T>& call, Index step) {
  const auto& owners = call.keys.of_rank;
  const int ranks = call.transport.size();
  const bool passed_on = call.cut.method == Method::kRing;
  std::vector<RoutedChunk> chunks;
  Index begin = 0;
  do {
    RoutedChunk chunk{{begin, std::min(begin + step, call.keys.length)}, {}, false};
    const auto needs = [&](int rank, const Rows& rows) {
      return count_both(call.needed[static_cast<std::size_t>(rank)], {rows}) > 0;
    };
    chunk.needed = needs(call.transport.rank(), chunk.rows);
    for (int owner = 0; owner < ranks; ++owner) {
      for (const Rows& rows : owners[static_cast<std::size_t>(owner)]) {
        const Rows part{std::max(rows.begin, chunk.rows.begin), std::min(rows.end, chunk.rows.end)};
        if (part.count() <= 0) continue;
        chunk.parts.push_back({part, owner, {}, passed_on});
        for (int n = 1; n < ranks; ++n) {
          if (const int rank = (owner + n) % ranks; needs(rank, part)) chunk.parts.back().others.push_back(rank);
        }
      }
    }
    std::ranges::sort(chunk.parts, {}, [](const RoutedRows& part) { return part.rows.begin; });
    chunks.push_back(std::move(chunk));
    begin += step;
  } while (begin < call.keys.length);
  return chunks;
}

/// Rows of a chunk, one after the other, [rows, B, heads, width], so that each part is one message.
template <class E>
class ChunkRows {
 public:
  ChunkRows() = default;
  ChunkRows(const Rows& rows, Index batch, Index heads, Index width)
      : rows_(rows), numbers_({rows.count(), batch, heads, width}) {}

  /// Nothing where there are no numbers.
  std::span<E> part(const Rows& rows) {
    if (numbers_.rank() == 0) return {};
    const Index row = numbers_.size(1) * numbers_.size(2) * numbers_.size(3);
    return numbers_.span().subspan(static_cast<std::size_t>((rows.begin - rows_.begin) * row),
                                   static_cast<std::size_t>(rows.count() * row));
  }
  /// [B, heads, rows, width]; null where nothing was asked for.
  View<E, 4> view() {
    if (numbers_.rank() == 0) return {};
    const Index width = numbers_.size(3), head = numbers_.size(2) * width;
    return {numbers_.data(),
            {numbers_.size(1), numbers_.size(2), numbers_.size(0), width},
            {head, width, numbers_.size(1) * head, 1}};
  }
  View<E, 4> view(const Rows& rows) { return view().sliced(2, rows.begin - rows_.begin, rows.end - rows_.begin); }

 private:
  Rows rows_;
  Tensor<E> numbers_;
};

/// Messages of a chunk's parts: `arrived(n)` once all that comes for part n is there, before it is sent on. What is passed on from
/// neighbour to neighbour goes in order of parts, as both ends expect it; what an owner serves, or gets, waits for no other part.
class RouteMessages {
 public:
  RouteMessages(Transport& transport, const RoutedChunk& chunk) : transport_(transport), chunk_(chunk) {}
  RouteMessages(const RouteMessages&) = delete;
  RouteMessages& operator=(const RouteMessages&) = delete;

  /// incoming(n, source): the bytes of part n that its source-th sender sends. Keys come from the owner's side, gradients go there.
  template <class Incoming>
  void start(bool gradients, const Incoming& incoming) {
    const int me = transport_.rank();
    for (std::size_t n = 0; n < chunk_.parts.size(); ++n) {
      const RoutedRows& part = chunk_.parts[n];
      std::vector<int> toward = part.toward_owner(me), away = part.away_from_owner(me);
      const std::vector<int>& from = gradients ? away : toward;
      to_.push_back(gradients ? toward : away);
      receives_.emplace_back();
      done_.push_back(false);
      for (std::size_t source = 0; source < from.size(); ++source) {
        for (const std::span<std::byte> bytes : incoming(n, source))
          receives_.back().push_back(transport_.receive(from[source], bytes));
      }
    }
  }
  /// outgoing(n): the bytes of part n. Moves messages on; whether all have come and gone.
  template <class Arrived, class Outgoing>
  bool poll(const Arrived& arrived, const Outgoing& outgoing) {
    for (std::size_t n = first_; n < receives_.size(); ++n) {
      if (done_[n]) continue;
      std::erase_if(receives_[n], [&](const Ticket ticket) { return transport_.poll(ticket); });
      if (!receives_[n].empty()) {
        if (chunk_.parts[n].passed_on) break;
        continue;
      }
      arrived(n);
      for (const int to : to_[n]) {
        for (const std::span<const std::byte> bytes : outgoing(n)) sends_.push_back(transport_.send(to, bytes));
      }
      to_[n].clear();
      done_[n] = true;
    }
    while (first_ < done_.size() && done_[first_]) ++first_;
    std::erase_if(sends_, [&](const Ticket ticket) { return transport_.poll(ticket); });
    return all_here() && sends_.empty();
  }
  /// Whether all that comes has come, and is on its way on.
  bool all_here() const { return first_ == receives_.size(); }
  /// Whether all that goes is on its way.
  bool all_sent() const {
    return std::ranges::all_of(to_, [](const std::vector<int>& to) { return to.empty(); });
  }

 private:
  Transport& transport_;
  const RoutedChunk& chunk_;
  std::vector<std::vector<int>> to_;           // by part: whom it has still to be sent to
  std::vector<std::vector<Ticket>> receives_;  // by part
  std::vector<bool> done_;                     // by part: here and on its way on
  std::vector<Ticket> sends_;
  std::size_t first_ = 0;  // part that is not done
};

}  // namespace qkv::inline v0::dist
