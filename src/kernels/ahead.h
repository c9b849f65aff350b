// What a call fetches from memory while it multiplies: the rows of the next head. Where all heads do not fit the caches, the
// multipliers would wait for them between two heads. Plain data; the fetches are the products' (products/gemm.h), which rows
// and when it pays is the callers' (attention/forward/forward_job.h, backward/backward_job.h).
#pragma once

#include <cstddef>

#include "qkv/types.h"

namespace qkv {

/// Rows that a later call will read or write.
struct RowsAhead {
  const std::byte* row;
  Index stride, bytes, count;  // between rows, of a row; rows
};

/// A few cache lines are fetched after each block of a product; how far it is, is kept here.
struct Ahead {
  static constexpr int kTensors = 8;
  static constexpr Index kLine = 64;
  RowsAhead rows[kTensors];  // unused ones have no rows
  Index lines = 0;           // of all rows
  Index per_block = 0, at = 0;
  int current = 0, used = 0;

  /// Rows [begin, begin + count) of a head of [B, H, T, D]; nothing of a null view.
  template <class Rows>
  void add(const Rows& view, Index b, Index h, Index begin, Index count) {
    if (view.data() == nullptr || count == 0) return;
    constexpr Index size = sizeof(*view.data());
    const Index stride = view.stride(2) * size, bytes = view.size(3) * size;
    const auto* const first = reinterpret_cast<const std::byte*>(&view(b, h, begin, 0));
    // Rows that follow each other are one.
    rows[used] = stride == bytes ? RowsAhead{first, 0, bytes * count, 1} : RowsAhead{first, stride, bytes, count};
    lines += rows[used].count * ((rows[used].bytes + kLine - 1) / kLine);
    ++used;
  }
};

}  // namespace qkv
