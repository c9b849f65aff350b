// A PositionBias as kernels read it: one vector over distances per head, which strides (-1, +1) turn into a bias [Tq,
// Tk].
#pragma once

#include <cstdint>

#include "core/threads/scratch.h"
#include "qkv/position_bias.h"

namespace qkv::inline v0 {

struct PositionVectors {
  const void* zero = nullptr;          // [H, distances] of sums: distance 0 of head 0; null: none
  const std::int32_t* rows = nullptr;  // [distances]: the table's row that distance 0 reads
  Index head_stride = 0;

  /// Bytes that spread() borrows: 0 if there is nothing to spread out.
  static std::size_t bytes(const PositionBias& bias, StoredType elements, Index q_len, Index kv_len);
  /// Spreads out the distances that q_len queries and kv_len keys have, or fewer of both. Returns their memory.
  ScratchLease spread(const PositionBias& bias, StoredType elements, Index q_len, Index kv_len, const Context& context);
};

/// The distance of query i and key j is j - i - offset.
inline Index position_offset(const PositionBias& bias, Index q_len, Index kv_len) {
  return bias.align() == Align::kBottomRight ? kv_len - q_len : 0;
}

}  // namespace qkv::inline v0
