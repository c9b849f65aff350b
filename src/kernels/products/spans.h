// Products over the live part of a block. Masks leave diagonals, bands and ragged ends: each group of kGroup rows of C
// sums over its own span of the depth, and each vector of lanes computes the scores of its own span of keys. Every
// element is still one chain of FMAs in ascending order, and the skipped terms are zeros, so results do not depend on
// how a block is cut.
#pragma once

#include "kernels/products/gemm.h"

namespace qkv {
namespace {

/// [begin, end); begin == end is empty.
struct Span {
  Index begin, end;
  bool empty() const { return begin >= end; }
  friend bool operator==(const Span&, const Span&) = default;
};

inline Span meet(Span a, Span b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }
inline Span join(Span a, Span b) {
  if (a.empty()) return b;
  return b.empty() ? a : Span{smaller(a.begin, b.begin), larger(a.end, b.end)};
}

/// Rows of C that share one span of the depth; divides the lanes of a strip.
constexpr Index kGroup = 4;

/// Where B and C are this wide, blocks are half as high: 4 x 4 loads 8 vectors for 16 FMAs where 8 x 2 loads 10, reads
/// A once, not twice, and wastes less at an edge. With 16 registers there is no room for it.
constexpr int kWideVectors = kRows >= 8 ? 2 * kVectors : kVectors;
template <class T> constexpr Index kWideLanes = kWideVectors * Simd<T>::kLanes;

/// One column of blocks; neighbouring groups of rows with the same span are one product.
template <class T, int kV, Store kStore, bool kTail = false>
inline void product_span_column(const Product<T>& p, Index rows, Index column, const Span* depth_of, int tail = 0) {
  for (Index row = 0; row < rows;) {
    const Span depth = depth_of[row / kGroup];
    Index end = row + kGroup;
    while (end < rows && depth_of[end / kGroup] == depth) end += kGroup;
    Product<T> part = p;
    const Index skipped = depth.begin / Terms<T>::kStep * Terms<T>::kStep, meetings = skipped / Terms<T>::kNumbers;
    part.a += row * p.a_row + meetings * p.a_depth;
    part.b += meetings * p.b_row;
    part.c += row * p.c_row;
    part.depth = depth.end - skipped;
    product_rows<T, kV, kStore, kTail>(part, smaller(end, rows) - row, column, tail);
    row = end;
  }
}

/// C [rows, columns], where rows [kGroup g, kGroup (g + 1)) of A are zero outside depth_of[g], at least within its
/// first and last step (Terms::kStep).
template <class T, Store kStore>
inline void product_spans(const Product<T>& p, Index rows, Index columns, const Span* depth_of) {
  constexpr int n = Simd<typename Terms<T>::Sum>::kLanes;
  Index column = 0;
  for (; column + kWideVectors * n <= columns; column += kWideVectors * n) {
    product_span_column<T, kWideVectors, kStore>(p, rows, column, depth_of);
  }
  if constexpr (kWideVectors > kVectors) {
    for (; column + kVectors * n <= columns; column += kVectors * n) {
      product_span_column<T, kVectors, kStore>(p, rows, column, depth_of);
    }
  }
  for (; column + n <= columns; column += n) product_span_column<T, 1, kStore>(p, rows, column, depth_of);
  if (column < columns) {
    product_span_column<T, 1, kStore, true>(p, rows, column, depth_of, static_cast<int>(columns - column));
  }
}

template <class T, int kV, Store kStore> inline void set_rows(const Product<T>& p, Span rows, int first_vector) {
  if (rows.empty()) return;
  Product<T> part = p;
  part.a += rows.begin * p.a_row;
  part.c += rows.begin * p.c_row;
  product_rows<T, kV, kStore>(part, rows.end - rows.begin, first_vector * Simd<typename Terms<T>::Sum>::kLanes);
}

/// C [rows, kV vectors]: rows rows_of[v] of vector v. The rows that all vectors need are one product; each half then
/// computes the rest of its own. Rows `done` have been computed.
template <class T, int kV, Store kStore = Store::kSet>
inline void product_of_vectors(const Product<T>& p, const Span* rows_of, int first_vector, Span done) {
  Span all = rows_of[first_vector];
  for (int v = 1; v < kV; ++v) all = meet(all, rows_of[first_vector + v]);
  if (!all.empty()) {
    if (done.empty()) done = {all.begin, all.begin};
    set_rows<T, kV, kStore>(p, {all.begin, done.begin}, first_vector);
    set_rows<T, kV, kStore>(p, {done.end, all.end}, first_vector);
    done = all;
  }
  if constexpr (kV > 1) {
    product_of_vectors<T, kV / 2, kStore>(p, rows_of, first_vector, done);
    product_of_vectors<T, kV / 2, kStore>(p, rows_of, first_vector + kV / 2, done);
  }
}

}  // namespace
}  // namespace qkv
