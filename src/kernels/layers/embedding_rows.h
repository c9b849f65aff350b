// Embeddings: rows gathered from a table by index, gradients scattered back to it.
#pragma once

#include "kernels/layers/params.h"
#include "simd/vec.h"

namespace qkv {
namespace {

/// to[0..width) = from[0..width) + addend[0..width), without kAdd = from. `to` may be the addend.
template <bool kAdd> inline void move_row(const float* from, const float* addend, float* to, Index width) {
  for_vectors<float>(width, [&](Index e, int lanes) {
    const auto value = load_lanes(from + e, lanes);
    store_lanes(to + e, kAdd ? load_lanes(addend + e, lanes) + value : value, lanes);
  });
}

/// rows[m, :] = table[ids[m], :] + other[other_ids[m], :], or += table[ids[m], :]
inline void gather_rows(const GatherRows& t) {
  for (Index m = 0; m < t.count; ++m) {
    const float* from = t.table + t.ids[m] * t.table_stride;
    float* to = t.rows + m * t.row_stride;
    if (t.accumulate) {
      move_row<true>(from, to, to, t.width);
    } else if (t.other != nullptr) {
      move_row<true>(from, t.other + t.other_ids[m] * t.other_stride, to, t.width);
    } else {
      move_row<false>(from, nullptr, to, t.width);
    }
  }
}

/// table[ids[m], :] += rows[m, :], m ascending
inline void scatter_rows(const ScatterRows& t) {
  for (Index m = 0; m < t.count; ++m) {
    float* to = t.table + t.ids[m] * t.table_stride;
    move_row<true>(t.rows + m * t.row_stride, to, to, t.width);
  }
}

}  // namespace
}  // namespace qkv
