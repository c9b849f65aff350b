// Keys in chunks, on their way from the ranks that own them to those that need them: who gets which rows from whom, and
// the messages of one chunk.
//
//   rank 1's keys     ring        1 -> 2 -> 3 -> 0               their gradients     1 <- 2 <- 3 <- 0
//                     all-gather  1 -> 2, 1 -> 3, 1 -> 0                             1 <- 2, 1 <- 3, 1 <- 0
//
// A rank gets each row once. Two ranks may send keys one way and gradients the other, so both ends start their messages
// in one order: a step sends the next chunk's keys before the last chunk's gradients.
#pragma once

#include "dist/call.h"

namespace qkv::inline v0::dist {

/// Rows of a chunk that one rank owns and the same ranks need, as this rank passes them.
struct RoutedRows {
  Rows rows;
  int owner;
  bool passed_on;         // from neighbour to neighbour; otherwise the owner serves each
  std::vector<int> from;  // whom this rank gets the keys from, and sends their gradients to: one at most
  std::vector<int> to;    // whom it sends the keys to, and gets their gradients from; ascending where they are many
};

struct RoutedChunk {
  Rows rows;
  std::vector<RoutedRows> parts;  // by ascending rows
  bool needed;                    // by this rank's queries
};

/// The chunks of a call, of `step` keys but for the last; one without keys where there are none.
std::vector<RoutedChunk> routed_chunks(const ParallelCall& call, Index step, bool passed_on);

/// k and v of some heads of a chunk, from their owners past this rank, or this rank's shares of their gradients, on
/// their way back: each rank of a ring adds its own to what comes from the rank after it; otherwise the owner adds all,
/// in order of ranks.
class Routed {
 public:
  enum class Way { kFromOwners, kToOwners };
  using Arrived = std::function<void(const Routed&, const RoutedRows&)>;
  /// Zeros, of the sizes of k and v but for the length; a null array stays null. `arrived`: called once all that comes
  /// for some rows is there, before they are sent on.
  Routed(const ParallelCall& call, const RoutedChunk& chunk, Way way, StoredType type, const AnyView& k,
      const AnyView& v, Arrived arrived);
  Routed(const Routed&) = delete;
  Routed& operator=(const Routed&) = delete;
  /// Passes on what comes also where this rank's work has thrown.
  ~Routed();

  const AnyView& k() const { return arrays_[0]; }
  const AnyView& v() const { return arrays_[1]; }

  void start();
  /// Moves messages on; whether all have come and gone.
  bool poll();
  /// Until all that comes has come, and is on its way on.
  void wait();
  /// Until all have come and gone.
  void finish();
  /// Whether all that goes is on its way.
  bool all_sent() const;

 private:
  std::span<std::byte> part(const AnyView& x, const Rows& rows) const;
  void add_in_order(std::size_t n);

  const ParallelCall& call_;
  const RoutedChunk& chunk_;
  Way way_;
  Arrived arrived_;
  std::array<Buffer, 2> memory_;
  std::array<AnyView, 2>
      arrays_;  // [B, heads, rows, width], each row's heads one after the other, so that each part is one message
  bool started_ = false;
  std::vector<std::vector<std::pair<int, std::size_t>>>
      to_;                                     // by part: rank and array that are still to be sent, last first
  std::vector<std::vector<Ticket>> receives_;  // by part
  std::vector<std::vector<std::array<std::vector<std::byte>, 2>>> came_;  // shares, by part and sender
  std::vector<bool> done_;                                                // by part: here and on its way on
  std::vector<Ticket> sends_;
  std::size_t first_ = 0;  // part that is not done
};

}  // namespace qkv::inline v0::dist
