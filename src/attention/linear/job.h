// Shared by forward and backward of linear attention while they run: scratch memory and the sums of segments. A slot
// is a state and the decay of the state before it.
#pragma once

#include <algorithm>

#include "attention/linear/problem.h"
#include "core/threads/context_impl.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

template <class T> struct LinearJob {
  LinearProblem<T> p;
  View<T, 4> out;                         // backward only reads it, where the sums are normalized
  View<T, 3> normalizer;                  // null: not wanted
  T *slots = nullptr, *totals = nullptr;  // [slots][slot_count], likewise
  std::byte* workers = nullptr;
  std::size_t kernel_bytes = 0, worker_bytes = 0;
  static constexpr Index kWorkerSlots = 3;

  T* slot(Index number) const { return slots + number * p.slot_count(); }
  T* total(Index item) const { return totals + item * p.slot_count(); }
  void* kernel_scratch(int worker) const { return workers + static_cast<std::size_t>(worker) * worker_bytes; }
  T* worker_slot(int worker, Index number) const {
    return reinterpret_cast<T*>(workers + static_cast<std::size_t>(worker) * worker_bytes + kernel_bytes) +
           number * p.slot_count();
  }

  /// One block of memory for all: random features, slots, totals, and each worker's kernel scratch and three slots.
  ScratchLease borrow(Context& context, Index num_slots, Index num_totals, std::size_t bytes_of_kernel) {
    kernel_bytes = round_to_line(bytes_of_kernel);
    worker_bytes = kernel_bytes + line_bytes<T>(kWorkerSlots * p.slot_count());
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      p.carve_features(carver);
      slots = carver.array<T>(num_slots * p.slot_count());
      totals = carver.array<T>(num_totals * p.slot_count());
      workers = carver.array<std::byte>(static_cast<Index>(worker_bytes) * p.threads);
      return carver.used();
    };
    ScratchLease lease = borrow_scratch(context, carve(nullptr));
    carve(lease.data());
    return lease;
  }

  LinearAttentionSegment<T> part(const Tokens& tokens) const {
    LinearAttentionSegment<T> s = p.part(tokens);
    const Index b = tokens.item / p.num_kv_heads, h = tokens.item % p.num_kv_heads * p.group_size();
    s.out = head_rows(out, b, h);
    s.normalizer = head_rows(normalizer, b, h);
    return s;
  }

  /// Computes the own state of one segment of keys into its slot.
  void sum_segment(Index number, int worker) const {
    LinearAttentionSegment<T> s = p.part(p.tokens(number, p.kv_len));
    s.q = {};
    s.local = slot(number);
    p.kernels->forward(s, kernel_scratch(worker));
  }

  /// Turns a slot into the state before it, and makes `next` the one after it.
  void step(T* slot, const T* state, T* next) const {
    std::copy_n(state, p.slot_count(), next);
    pass_segment(slot, p.state_count(), next);
    std::copy_n(state, p.slot_count(), slot);
  }

  /// Turns one head's slots, each a segment's own state, into the states before the segments. Returns that after the
  /// last.
  const T* pass_states(Index item, int worker) const {
    T *state = worker_slot(worker, 0), *next = worker_slot(worker, 1);
    const Index segments = p.segments(p.kv_len);
    p.load_initial(item, state);
    for (Index segment = 0; segment < segments; ++segment) {
      step(slot(item * segments + segment), state, next);
      std::swap(state, next);
    }
    return state;
  }

  /// Not causal: total = the initial state and all segments, in order.
  void add_segments(Index item) const {
    p.load_initial(item, total(item));
    for (Index segment = 0; segment < p.segments(p.kv_len); ++segment) {
      pass_segment(slot(item * p.segments(p.kv_len) + segment), p.state_count(), total(item));
    }
  }
};

}  // namespace qkv::inline v0
