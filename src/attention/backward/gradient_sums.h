// Where gradients are accumulated. Full-width types are summed in the caller's memory, 16-bit types in float scratch
// that is rounded once at the end.
//   dk, dv  belong to one work item: float rows of one key range, private to a worker
//   dq      with one key range: float rows of one query tile, of a worker; with more: one [group, Tq, D] per kv head
//           in flight. Heads take these slots in turn: head n takes slot n mod slots once head n - slots is done.
#pragma once

#include <algorithm>

#include "attention/call/problem.h"
#include "core/threads/turns.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

/// Rows of one gradient as a kernel adds to them, the first of a tile or range on.
template <class Sum> struct SumRows {
  Sum* data = nullptr;
  Index stride = 0;

  void clear(Index count) const { std::fill_n(data, count * stride, Sum{0}); }
};

/// The rows of a gradient in the caller's memory; null where it is not wanted.
template <class Sum> SumRows<Sum> rows_of_caller(const AnyView& gradient, Index b, Index h, Index first) {
  return {gradient.as<Sum>(b, h, first), gradient.stride(2)};
}

template <class Sum> class GradientSums {
 public:
  /// `carried`: dq of every head, kept from call to call (backward_driver.h); null: slots.
  GradientSums(const Problem& p, Index threads, Sum* carried) : p_(p), carried_(carried) {
    const Index heads = p.batch * p.num_kv_heads;
    if (p.rounds() && p.key_ranges() > 1) slots_ = carried == nullptr ? std::min(threads, heads) : heads;
  }

  std::size_t shared_bytes() const {
    return line_bytes<Sum>(carried_ == nullptr ? slots_ * slot_rows() * p_.head_dim : 0);
  }
  Index num_turns() const { return slots_; }
  /// A head that is claimed may wait for the one as many before it, and for none that comes later.
  Index heads_in_flight() const { return std::max<Index>(1, slots_); }
  std::size_t worker_bytes() const {
    return p_.rounds() ? line_bytes<Sum>(p_.backward_keys * (p_.head_dim + p_.v_head_dim) + tile_rows() * p_.head_dim)
                       : 0;
  }
  void set_memory(std::byte* shared, Turn* turns) {
    shared_ = carried_ == nullptr ? reinterpret_cast<Sum*>(shared) : carried_;
    turns_ = turns;
  }

  /// Waits until the slot of kv head `head` (numbered as they are claimed) is free; releases it to the next head once
  /// its last range is done.
  void wait_for_slot(Index head) const {
    if (slots_ > 0) wait_for_turn(turns_[head % slots_], head / slots_);
  }
  void pass_slot(Index head) const {
    if (slots_ > 0) pass_turn(turns_[head % slots_], head / slots_);
  }

  /// dk and dv rows of a key range, in the worker's private memory.
  SumRows<Sum> keys(std::byte* worker) const { return {reinterpret_cast<Sum*>(worker), p_.head_dim}; }
  SumRows<Sum> values(std::byte* worker) const {
    return {reinterpret_cast<Sum*>(worker) + p_.backward_keys * p_.head_dim, p_.v_head_dim};
  }
  /// dq rows of query head h, whose kv head has the number `head`, for the tile whose first row is `first`.
  SumRows<Sum> queries(std::byte* worker, Index head, Index h, Index first) const {
    if (slots_ == 0) return {values(worker).data + p_.backward_keys * p_.v_head_dim, p_.head_dim};
    const Index row = head % slots_ * slot_rows() + h % p_.group_size() * p_.q_len + first;
    return {shared_ + row * p_.head_dim, p_.head_dim};
  }

 private:
  Index slot_rows() const { return p_.group_size() * p_.q_len; }
  Index tile_rows() const { return p_.key_ranges() > 1 ? 0 : p_.query_tile; }

  const Problem& p_;
  Index slots_ = 0;
  Sum* carried_;
  Sum* shared_ = nullptr;  // [slots][group][Tq][D]
  Turn* turns_ = nullptr;  // [slots]
};

/// Writes sums, `count` rows that follow each other, to rows [begin, begin + count) of (b, h) of a gradient, or adds
/// them to what is there: rounded where it is of 16 bits. Nothing of a null one.
template <class Sum> void write_sums(const Problem& p, const SumRows<Sum>& sums, const AnyView& gradient, Index b,
    Index h, Index begin, Index count, bool add) {
  if (gradient.data == nullptr) return;
  if (gradient.type != stored_as<Sum>()) {
    p.kernels<Sum>().round(sums.data, count, sums.stride, rows_at(gradient, b, h, begin), add);
    return;
  }
  for (Index row = 0; row < count; ++row) {
    const Sum* const from = sums.data + row * sums.stride;
    Sum* const to = gradient.as<Sum>(b, h, begin + row);
    for (Index d = 0; d < sums.stride; ++d) to[d] = add ? to[d] + from[d] : from[d];
  }
}

}  // namespace qkv::inline v0
