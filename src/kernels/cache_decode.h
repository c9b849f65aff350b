// Attention of few queries on a cache: decode.h's loops on rows that are listed chunk by chunk, so that pages of any size are
// read where they lie, in what they are stored as: bytes that are not stored are not read. Integers take part as they are: a
// score is multiplied by its key's scale, a weight by its value's. Not: many queries (cache_tile.h).
#pragma once

#include "kernels/cache_rows.h"
#include "kernels/decode.h"
#include "kernels/half.h"

namespace qkv {
namespace {

template <class S>
struct CacheDecodeScratch {
  DecodeScratch<S> decode;
  const S **k_rows, **next_k_rows, **v_rows;  // [chunk] by place
  float *k_scales, *v_scales;                 // [chunk] by place; integers only
  std::size_t bytes;

  CacheDecodeScratch(void* base, Index rows, Index head_dim, Index v_head_dim) : decode(base, rows, head_dim, v_head_dim) {
    Carver carver(base);
    carver.take<std::byte>(static_cast<Index>(decode.bytes));
    k_rows = carver.take<const S*>(decode.chunk);
    next_k_rows = carver.take<const S*>(decode.chunk);
    v_rows = carver.take<const S*>(decode.chunk);
    const Index scales = std::is_same_v<S, std::int8_t> ? decode.chunk : 0;
    k_scales = carver.take<float>(scales);
    v_scales = carver.take<float>(scales);
    bytes = carver.used();
  }
};

/// rows[4 g + i] = where position j0 + i * run + g lies, for the four runs of a chunk. An existing position stands in for one
/// that does not exist: it is fetched, never used.
template <class S>
inline void list_rows(const CachedHead& cache, const CachedMatrix& matrix, Index j0, Index run, const S** rows) {
  for (Index i = 0; i < kRuns; ++i) {
    const Index begin = j0 + i * run;
    Index g = 0;
    const S* row =
        cached_row<S>(matrix, cache.pages[cache.first / cache.page_size % cache.num_pages], cache.first % cache.page_size);
    for_cached_runs(cache, begin, begin + run, [&](Index at, Index page, Index row_of_page, Index count) {
      for (; g < at; ++g) rows[kRuns * g + i] = row;
      row = cached_row<S>(matrix, page, row_of_page);
      for (; g < at + count; ++g, row += matrix.row_stride) rows[kRuns * g + i] = row;
      row -= matrix.row_stride;
    });
    for (; g < run; ++g) rows[kRuns * g + i] = row;
  }
}

/// The scales of the same positions, 0 where there is none.
inline void list_scales(const CachedHead& cache, const CachedMatrix& matrix, Index j0, Index run, float* scales) {
  for (Index i = 0; i < kRuns; ++i) {
    const Index begin = j0 + i * run;
    Index g = 0;
    for_cached_runs(cache, begin, begin + run, [&](Index at, Index page, Index row, Index count) {
      for (; g < at; ++g) scales[kRuns * g + i] = 0;
      const float* from = cached_scales(matrix, page, row);
      for (Index n = 0; n < count; ++n, ++g) scales[kRuns * g + i] = from[n];
    });
    for (; g < run; ++g) scales[kRuns * g + i] = 0;
  }
}

/// K and V of a group in a cache.
template <class S>
struct CachedChunks {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const CachedHead& cache;
  const S **k_rows, **next_k_rows, **v_rows;
  float *k_scales, *v_scales;
  Index next = -1;  // the chunk that next_k_rows list

  CachedChunks(const CachedHead& head, const CacheDecodeScratch<S>& w)
      : cache(head),
        k_rows(w.k_rows),
        next_k_rows(w.next_k_rows),
        v_rows(w.v_rows),
        k_scales(w.k_scales),
        v_scales(w.v_scales) {}

  ChunkRows<ListedRuns<S>> chunk(Index j0, Index keys, const RunShape& k_shape, const RunShape& v_shape) {
    const S** const before = k_rows;
    k_rows = next_k_rows;
    next_k_rows = before;
    if (next != j0) list_rows(cache, cache.k, j0, k_shape.run, k_rows);
    next = j0 + keys;
    list_rows(cache, cache.k, next, k_shape.run, next_k_rows);
    list_rows(cache, cache.v, j0, k_shape.run, v_rows);
    if constexpr (kScaled) {
      list_scales(cache, cache.k, j0, k_shape.run, k_scales);
      list_scales(cache, cache.v, j0, k_shape.run, v_scales);
    }
    return {{k_shape, k_rows, v_rows}, {v_shape, v_rows, next_k_rows}};
  }
};

/// Of its own, so that all types of q share one copy.
template <class S>
[[gnu::noinline]] void decode_cached_chunks(const DecodeGroup<SumOf<S>>& t, const CachedHead& cache, Index k_begin, Index k_end,
                                            const CacheDecodeScratch<S>& w, const DecodeState<SumOf<S>>& state) {
  CachedChunks<S> chunks(cache, w);
  decode_chunks(t, k_begin, k_end, chunks, w.decode, state);
}

/// A group whose queries are packed already, as one of the type of sums.
template <class Q>
inline DecodeGroup<Accumulator<Q>> sums_group(const DecodeGroup<Q>& t) {
  if constexpr (std::is_same_v<Q, Accumulator<Q>>) {
    return t;
  } else {
    DecodeGroup<float> f{};
    f.scores = float_scores(t.scores);
    f.bias_head_stride = t.bias_head_stride;
    f.position_head_stride = t.position_head_stride;
    f.v_head_dim = t.v_head_dim;
    f.q_len = t.q_len;
    f.group_size = t.group_size;
    f.mask_differs = t.mask_differs;
    return f;
  }
}

template <class Q>
void decode_cached_part(const DecodeGroup<Q>& t, const CachedHead& cache, Index k_begin, Index k_end, void* scratch,
                        void* state) {
  for_stored_type<Accumulator<Q>>(cache.type, [&](auto stored) {
    using S = decltype(stored);
    const CacheDecodeScratch<S> w(scratch, rows_of(t), t.scores.head_dim, t.v_head_dim);
    pack_queries(t, w.decode);
    decode_cached_chunks<S>(sums_group(t), cache, k_begin, k_end, w, DecodeState<SumOf<S>>(state, rows_of(t), t.v_head_dim));
  });
}

template <class Sum>
Index cache_decode_chunk(StoredType type, Index head_dim, Index v_head_dim) {
  return for_stored_type<Sum>(type, [&](auto stored) { return decode_chunk<decltype(stored)>(head_dim, v_head_dim); });
}
template <class Sum>
Index cache_decode_part_keys(StoredType type, Index head_dim, Index v_head_dim) {
  return for_stored_type<Sum>(type, [&](auto stored) { return decode_keys<decltype(stored)>(head_dim, v_head_dim); });
}
template <class Sum>
std::size_t cache_decode_scratch_bytes(StoredType type, Index rows, Index head_dim, Index v_head_dim) {
  return for_stored_type<Sum>(
      type, [&](auto stored) { return CacheDecodeScratch<decltype(stored)>(nullptr, rows, head_dim, v_head_dim).bytes; });
}

}  // namespace
}  // namespace qkv
