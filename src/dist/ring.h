// Keys in chunks that visit every rank, passed on from neighbour to neighbour: who owns which rows, and the messages of one chunk.
// A rank gets each row once and sends it at most once. Not: what is computed (by_ring.h).
//
//   chunk of rank 1's keys:   rank 1 -> rank 2 -> rank 3 -> rank 0        its gradients:   rank 1 <- rank 2 <- rank 3 <- rank 0
//
// Two ranks may pass keys one way and gradients the other, so both ends start their messages in one order: a step passes on the
// next chunk's keys before the last chunk's gradients.
#pragma once

#include "attention/carried.h"
#include "dist/call.h"

namespace qkv::inline v0::dist {

/// Rows of a chunk that one rank owns, and the ranks that get them, in order: the owner, then those whose queries need some.
struct RingPart {
  Rows rows;
  std::vector<int> ranks;

  /// This rank's neighbour, `by` places on; -1: none.
  int neighbour(int me, int by) const {
    const auto at = std::ranges::find(ranks, me);
    if (at == ranks.end()) return -1;
    const auto place = at - ranks.begin() + by;
    return place >= 0 && place < std::ssize(ranks) ? ranks[static_cast<std::size_t>(place)] : -1;
  }
};

struct RingChunk {
  Rows rows;
  std::vector<RingPart> parts;  // by ascending rows
  bool needed;                  // by this rank's queries
};

/// The chunks of a call, of `step` keys but for the last; one without keys where there are none.
template <class T>
std::vector<RingChunk> ring_chunks(const ParallelCall<T>& call, Index step) {
  const auto& owners = call.keys.of_rank;
  const int ranks = call.transport.size();
  std::vector<RingChunk> chunks;
  Index begin = 0;
  do {
    RingChunk chunk{{begin, std::min(begin + step, call.keys.length)}, {}, false};
    const auto needs = [&](int rank, const Rows& rows) {
      return count_both(call.needed[static_cast<std::size_t>(rank)], {rows}) > 0;
    };
    chunk.needed = needs(call.transport.rank(), chunk.rows);
    for (int owner = 0; owner < ranks; ++owner) {
      for (const Rows& rows : owners[static_cast<std::size_t>(owner)]) {
        const Rows part{std::max(rows.begin, chunk.rows.begin), std::min(rows.end, chunk.rows.end)};
        if (part.count() <= 0) continue;
        chunk.parts.push_back({part, {owner}});
        for (int n = 1; n < ranks; ++n) {
          if (const int rank = (owner + n) % ranks; needs(rank, part)) chunk.parts.back().ranks.push_back(rank);
        }
      }
    }
    std::ranges::sort(chunk.parts, {}, [](const RingPart& part) { return part.rows.begin; });
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

  /// Zeros of the same sizes.
  ChunkRows like() const {
    ChunkRows other;
    other.rows_ = rows_;
    if (numbers_.rank() != 0) other.numbers_ = Tensor<E>(numbers_.sizes());
    return other;
  }
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

/// Messages of a chunk's parts, one part after the other: `arrived(part)` once what came is there, before it is passed on.
class RingMessages {
 public:
  RingMessages(Transport& transport, const RingChunk& chunk) : transport_(transport), chunk_(chunk) {}
  RingMessages(const RingMessages&) = delete;
  RingMessages& operator=(const RingMessages&) = delete;

  /// incoming(part), outgoing(part): spans of bytes; `by` is where messages come from: -1, from the rank before (keys), 1, from
  /// the rank after (gradients).
  template <class Incoming>
  void start(int by, const Incoming& incoming) {
    by_ = by;
    for (const RingPart& part : chunk_.parts) {
      receives_.emplace_back();
      const int from = part.neighbour(transport_.rank(), by_);
      if (from < 0) continue;
      for (const std::span<std::byte> bytes : incoming(part)) receives_.back().push_back(transport_.receive(from, bytes));
    }
  }
  /// Moves messages on; whether all have come and gone.
  template <class Arrived, class Outgoing>
  bool poll(const Arrived& arrived, const Outgoing& outgoing) {
    while (!passed_on()) {
      const RingPart& part = chunk_.parts[next_];
      std::erase_if(receives_[next_], [&](const Ticket ticket) { return transport_.poll(ticket); });
      if (!receives_[next_].empty()) break;
      arrived(part);
      const int to = part.neighbour(transport_.rank(), -by_);
      if (to >= 0) {
        for (const std::span<const std::byte> bytes : outgoing(part)) sends_.push_back(transport_.send(to, bytes));
      }
      ++next_;
    }
    std::erase_if(sends_, [&](const Ticket ticket) { return transport_.poll(ticket); });
    return passed_on() && sends_.empty();
  }
  /// Whether all that comes has come, and is on its way on.
  bool passed_on() const { return next_ == receives_.size(); }

 private:
  Transport& transport_;
  const RingChunk& chunk_;
  int by_ = -1;
  std::vector<std::vector<Ticket>> receives_;  // by part
  std::vector<Ticket> sends_;
  std::size_t next_ = 0;  // the first part that has not been passed on
};

}  // namespace qkv::inline v0::dist
