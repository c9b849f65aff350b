// The scratch memory of a backward call, laid out once: attention_backward borrows it, attention_plan states it.
//   shared     delta and lse2 in two parts, [B, H, Tq] each | turns | dq of the heads in flight (16-bit types, key ranges > 1)
//   a worker   the kernels' scratch | dbias of one key range (bias without a query axis) | dk, dv, dq of 16-bit types
#pragma once

#include <algorithm>

#include "attention/gradient_sums.h"
#include "attention/problem.h"
#include "attention/turns.h"

namespace qkv {
inline namespace v0 {

struct BackwardMemory {
  Index num_tile_turns = 0, num_turns = 0;
  std::size_t row_bytes = 0, turn_bytes = 0, shared_sums_bytes = 0;
  std::size_t kernel_bytes = 0, bias_bytes = 0, worker_sums_bytes = 0, position_bytes = 0;

  /// `sums_bias`: a worker sums dbias over the queries of its key range.
  template <class T>
  BackwardMemory(const Problem<T>& p, const GradientSums<T>& sums, bool sums_bias) {
    using Sum = Accumulator<T>;
    const auto lines = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
    const Index heads = p.batch * p.num_heads, tiles = p.query_tiles();
    num_tile_turns = p.key_ranges() > 1 ? heads * tiles : 0;
    num_turns = num_tile_turns + tiles + 1 + sums.num_turns();
    row_bytes = lines(static_cast<std::size_t>(3 * heads * p.q_len) * sizeof(Sum));
    turn_bytes = lines(static_cast<std::size_t>(num_turns) * sizeof(Turn));
    shared_sums_bytes = sums.shared_bytes();
    kernel_bytes = lines(std::max(p.kernels->backward_scratch_bytes(p.head_dim, p.v_head_dim),
                                  p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim)));
    bias_bytes = sums_bias ? lines(static_cast<std::size_t>(p.backward_keys) * sizeof(Sum)) : 0;
    worker_sums_bytes = sums.worker_bytes();
  }

  std::size_t shared_bytes() const { return row_bytes + turn_bytes + shared_sums_bytes; }
  std::size_t worker_bytes() const { return kernel_bytes + bias_bytes + worker_sums_bytes + position_bytes; }
};

}  // namespace v0
}  // namespace qkv
