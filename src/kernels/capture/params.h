// Parameters of the kernels that capture weights, as plain data: sums of each row while forward runs, and a second
// sweep over the keys once every row's normaliser is known. Letters as in params.h.
#pragma once

#include "kernels/attention/params.h"

namespace qkv {

/// Sums of each row of a forward tile over its keys, [q_count up to whole strips] each, with p = exp2(s2 - shift),
/// before dropout.
template <class Sum> struct RowSums {
  Index offset;                  // the position of query i among the keys is i + offset
  Sum *shift, *inverse;          // the weights are p * inverse, which is 1 / sums unless there is a sink
  Sum* sums;                     // sum_j p
  Sum* exponents;                // sum_j p (s2 - largest)
  Sum* distances;                // sum_j p |position - j|
  Sum* largest;                  // max_j s2; -inf: no key
  Index* largest_key;            // its first j; -1: no key
  Sum *self, *previous, *first;  // p of the keys position, position - 1 and 0; 0 where they are not kept
};

/// The weights of queries [q_begin, q_begin + q_count) of one (batch, head), computed again, and what is kept of them.
template <class Sum> struct CaptureSweep {
  ForwardTile<Sum> tile;       // of which nothing is written
  const Sum *shift, *inverse;  // [q_count]: w = exp2(s2 - shift) * inverse
  bool applied;                // weights after dropout
  Rows dout;  // [q_count, Dv]; not null: weights times their gradient, w (dout . v), with dropout's factor where that
              // is on
  bool positive;  // of these products those below 0 count as 0, and no 0 is among the largest
  // Each of these is null where it is not wanted.
  double* columns;       // [Tk]: added to
  double* map;           // [map rows of the tile][map_columns]: added to
  const Index* map_row;  // [q_count]: the row of `map` that a query belongs to
  Index map_columns;
  double* const* rows;  // [q_count]: [Tk], set where keys are live; null: this row is not wanted
  double* top_values;   // [q_count][top_k], the largest first
  Index* top_keys;      // [q_count][top_k], -1: fewer keys than that
  Index top_k;
};

/// Puts one more among a query's `top_k` largest, behind equal ones. It belongs there: a slot is free (key -1), or it
/// is larger than the last. Always inlined: no instruction set's copy may stand in for another's.
[[gnu::always_inline]] inline void insert_largest(double* values, Index* keys, Index top_k, double value, Index key) {
  Index slot = top_k - 1;
  for (; slot > 0 && (keys[slot - 1] < 0 || values[slot - 1] < value); --slot) {
    values[slot] = values[slot - 1];
    keys[slot] = keys[slot - 1];
  }
  values[slot] = value;
  keys[slot] = key;
}

template <class Sum> struct CaptureKernels {
  std::size_t (*statistics_bytes)();
  /// Kernels<T>::forward and forward_pairs, in their bits, and the sums; `statistics_scratch` beside their scratch.
  void (*forward)(const ForwardTile<Sum>&, const RowSums<Sum>&, void* scratch, void* statistics_scratch);
  void (*forward_pairs)(const ForwardTile<Sum>&, const RowSums<Sum>&, void* scratch, void* statistics_scratch);
  std::size_t (*sweep_bytes)(Index head_dim, Index v_head_dim, Index queries, bool copies);
  void (*sweep)(const CaptureSweep<Sum>&, void* scratch);
};

struct CaptureKernelTable {
  CaptureKernels<float> f32;
  CaptureKernels<double> f64;
};

}  // namespace qkv
