// Tiled forward attention on a cache: many queries, as in chunked prefill. A chunk of keys is read in place if it has the type
// of sums and is contiguous; otherwise it is copied to scratch memory, once for all strips of a query tile. The arithmetic is
// forward.h's, so every layout of a cache gives bit-identical results. Not: few queries (cache/decode.h).
#pragma once

#include "kernels/attention/widened_rows.h"
#include "kernels/cache/rows.h"

namespace qkv {
namespace {

/// Queries of a work item: fewer than without a cache where wide heads leave no room for a chunk's rows in a thread's 2 MiB.
template <class T>
Index cache_query_tile(Index head_dim, Index v_head_dim) {
  constexpr Index size = static_cast<Index>(sizeof(T)), budget = (Index{2} << 20) - (Index{1} << 16);
  const Index fixed =
      (key_tile<T>(head_dim, v_head_dim) * (head_dim + v_head_dim) + strip_lanes<T>() * larger(head_dim, v_head_dim)) * size;
  Index queries = query_tile<T>(head_dim, v_head_dim);
  while (queries > strip_lanes<T>() && queries * (head_dim + v_head_dim) * size + fixed > budget) queries /= 2;
  return queries;
}

template <class T>
struct CacheTileScratch : ForwardRowsScratch<T> {
  CacheTileScratch(void* base, Index head_dim, Index v_head_dim)
      : ForwardRowsScratch<T>(base, head_dim, v_head_dim, cache_query_tile<T>(head_dim, v_head_dim)) {}
};

/// The rows of forward_tile in type T. Queries and results of 16 bits pass through scratch memory.
template <class T>
struct CacheTileRows : PlainProducts {
  const CachedHead& cache;
  const CacheTileScratch<T>& w;
  Index head_dim, v_head_dim;
  const void* q;  // [Tq, D] of 16 bits, or null: the tile has its own
  void* out;      // [Tq, Dv] likewise
  Index q_stride, out_stride;
  void (*widen)(const void* rows, Index stride, Index begin, Index count, Index width, T* to);
  void (*narrow)(const T* from, Index count, Index width, void* rows, Index stride, Index begin);

  CacheTileRows(const CachedHead& head, const CacheTileScratch<T>& scratch) : cache(head), w(scratch) {}

  void pack_queries(ForwardTile<T> f, const ForwardScratch<T>& panels, const StripRange& r) const {
    if (q != nullptr) {
      widen(q, q_stride, r.i0, r.ni, head_dim, w.rows);
      f.scores.q = w.rows - r.i0 * head_dim;
    }
    PlainProducts::pack_queries(f, panels, r);
  }
  void take_keys(ForwardTile<T>& f, Index j0, Index nj) const {
    f.scores.k = take(cache.k, j0, nj, head_dim, w.k, f.scores.k_stride);
  }
  void take_values(ForwardTile<T>& f, Index j0, Index nj) const { f.v = take(cache.v, j0, nj, v_head_dim, w.v, f.v_stride); }
  void begin_out(ForwardTile<T>& f, const StripRange& r) const {
    if (out != nullptr) f.out = w.rows - r.i0 * v_head_dim;
  }
  void end_out(const ForwardTile<T>&, const StripRange& r) const {
    if (out != nullptr) narrow(w.rows, r.ni, v_head_dim, out, out_stride, r.i0);
  }

 private:
  /// Returns where row 0 would be, so that the kernel keeps its own row numbers, and sets the stride of the rows.
  const T* take(const CachedMatrix& matrix, Index j0, Index nj, Index width, T* scratch, Index& stride) const {
    constexpr StoredType own = std::is_same_v<T, double> ? StoredType::kF64 : StoredType::kF32;
    const Index begin = larger(j0, cache.first), end = smaller(j0 + nj, cache.end);
    if (cache.type == own && j0 >= cache.pinned_end && begin < end && begin / cache.page_size == (end - 1) / cache.page_size) {
      stride = matrix.row_stride;
      const Index page = cache.pages[begin / cache.page_size % cache.num_pages];
      return cached_row<T>(matrix, page, begin % cache.page_size) - begin * stride;
    }
    stride = width;
    for_stored_type<T>(cache.type, [&](auto stored) { read_cached<decltype(stored)>(cache, matrix, j0, nj, width, scratch); });
    return scratch - j0 * width;
  }
};

/// A function of its own, so that all types of q and out share one copy.
template <class T>
[[gnu::noinline]] void forward_cached_rows(const ForwardTile<T>& t, const CacheTileScratch<T>& w,
                                           const CacheTileRows<T>& rows) {
  forward_tile(t, w.tile, rows);
}

template <class Q>
void forward_cached(const ForwardTile<Q>& t, const CachedHead& cache, void* scratch) {
  using T = Accumulator<Q>;
  const CacheTileScratch<T> w(scratch, t.scores.head_dim, t.v_head_dim);
  CacheTileRows<T> rows(cache, w);
  rows.head_dim = t.scores.head_dim;
  rows.v_head_dim = t.v_head_dim;
  rows.q = nullptr;
  rows.out = nullptr;
  ForwardTile<T> f;
  if constexpr (std::is_same_v<Q, T>) {
    f = t;
  } else {
    f = float_forward(t);
    rows.q = t.scores.q;
    rows.q_stride = t.scores.q_stride;
    rows.out = t.out;
    rows.out_stride = t.out_stride;
    rows.widen = [](const void* from, Index stride, Index begin, Index count, Index width, float* to) {
      widen_rows(static_cast<const Q*>(from) + begin * stride, stride, count, width, to);
    };
    rows.narrow = [](const float* from, Index count, Index width, void* to, Index stride, Index begin) {
      narrow_rows(from, count, width, static_cast<Q*>(to) + begin * stride, stride);
    };
  }
  f.v = w.v;
  forward_cached_rows<T>(f, w, rows);
}

}  // namespace
}  // namespace qkv
