// Fetches the rows of the next head while the products of this one run: where all heads do not fit the cache, a head's rows come
// from memory, and between two heads the multipliers would wait for them. Not: which rows, and when it pays
// (attention/forward/forward_job.h).
#pragma once

#include "kernels/attention/params.h"
#include "kernels/products/gemm.h"

namespace qkv {
namespace {

/// Spreads the lines over a call of `blocks` blocks.
inline void begin_ahead(Ahead* ahead, Index blocks) {
  if (ahead != nullptr) ahead->per_block = (ahead->lines + blocks - 1) / larger<Index>(blocks, 1);
}

/// The lines of one block, into L2.
inline void fetch_ahead(Ahead& a) {
  constexpr Index line = 64;
  for (Index left = a.per_block; left > 0 && a.current < 4;) {
    RowsAhead& rows = a.rows[a.current];
    if (rows.count == 0) {
      ++a.current;
      continue;
    }
    const Index count = smaller(left, (rows.bytes - a.line + line - 1) / line);
    const std::byte* at = rows.row + a.line;
    for (Index n = 0; n < count; ++n, at += line) __builtin_prefetch(at, 0, 2);
    left -= count;
    a.line += count * line;
    if (a.line < rows.bytes) break;
    a.line = 0;
    rows.row += rows.stride;
    --rows.count;
  }
}

/// product_vectors, with fetches between its blocks.
template <class T, Store kStore>
inline void product_vectors_ahead(Product<T> p, Index rows, int first, int count, Ahead* ahead) {
  if (ahead == nullptr) return product_vectors<T, kStore>(p, rows, first, count);
  for (; rows > 0; rows -= kRows) {
    product_vectors<T, kStore>(p, smaller<Index>(kRows, rows), first, count);
    fetch_ahead(*ahead);
    p.a += kRows * p.a_row;
    p.c += kRows * p.c_row;
  }
}

}  // namespace
}  // namespace qkv
