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

/// A few cache lines are fetched after each block of a product; how far it is, is kept here. Starts as {}. Code of every instruction
/// set uses it, so nothing of it may be a symbol: no constructor, and its templates are inlined.
struct Ahead {
  static constexpr int kTensors = 8;
  static constexpr Index kLine = 64;
  RowsAhead rows[kTensors];  // unused ones have no rows
  Index lines;               // of all rows
  Index per_block, at;
  int current, used;

  /// Rows [begin, begin + count) of a head of [B, H, T, D]; nothing of a null view.
  template <class Rows>
  void add(const Rows& view, Index b, Index h, Index begin, Index count) {
    if (view.data() == nullptr || count == 0) return;
    add_rows(&view(b, h, begin, 0), view.stride(2), view.size(3), count);
  }
  /// `count` rows of `width` numbers, `stride` numbers apart.
  template <class T>
  __attribute__((always_inline)) void add_rows(const T* first, Index stride, Index width, Index count) {
    constexpr Index size = sizeof(T);
    const auto* const row = reinterpret_cast<const std::byte*>(first);
    // Rows that follow each other are one.
    rows[used] =
        stride == width ? RowsAhead{row, 0, width * size * count, 1} : RowsAhead{row, stride * size, width * size, count};
    lines += rows[used].count * ((rows[used].bytes + kLine - 1) / kLine);
    ++used;
  }
};

}  // namespace qkv
