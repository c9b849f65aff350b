// Fetches memory while a call multiplies: the rows of the next head. Where all heads do not fit the
// caches, the multipliers would wait for them between two heads. Plain data; the fetches are the products'
// (products/gemm.h), which rows and when it pays is the callers' (attention/forward/forward_driver.cc,
// backward/backward_driver.cc).
#pragma once

#include <cstddef>

#include "qkv/types.h"

namespace qkv {

/// Rows that a later call will read or write.
struct RowsAhead {
  const std::byte* row;
  Index stride, bytes, count;  // between rows, of a row; rows
};

/// A few cache lines are fetched after each block of a product; how far it is, is kept here. Starts as {}. Objects of
/// every instruction set hold it, so it has no constructor and no members that would be symbols.
struct Ahead {
  static constexpr int kTensors = 8;
  static constexpr Index kLine = 64;
  RowsAhead rows[kTensors];  // unused ones have no rows
  Index lines;               // of all rows
  Index per_block, at;
  int current, used;
};

namespace {

/// `count` rows of `bytes` bytes, `stride` bytes apart.
[[gnu::noinline, maybe_unused]] void add_bytes(Ahead& a, const void* first, Index stride, Index bytes, Index count) {
  const auto* const row = static_cast<const std::byte*>(first);
  // Rows that follow each other are one.
  a.rows[a.used] = stride == bytes ? RowsAhead{row, 0, bytes * count, 1} : RowsAhead{row, stride, bytes, count};
  a.lines += a.rows[a.used].count * ((a.rows[a.used].bytes + Ahead::kLine - 1) / Ahead::kLine);
  ++a.used;
}

/// `count` rows of `width` numbers, `stride` numbers apart.
template <class T> void add_rows(Ahead& a, const T* first, Index stride, Index width, Index count) {
  constexpr Index size = sizeof(T);
  add_bytes(a, first, stride * size, width * size, count);
}

}  // namespace
}  // namespace qkv
