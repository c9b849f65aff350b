// Decode attention on a cache: decode.h's loops on lists of row pointers, made chunk by chunk, so that pages of any size are
// read in place and in their storage type. Integers are multiplied as they are; a score is then scaled by its key's scale, a
// weight by its value's. Not: many queries (attention/forward.h).
#pragma once

#include "kernels/attention/widened_rows.h"
#include "kernels/cache/rows.h"
#include "kernels/decode/decode.h"

namespace qkv {
namespace {

/// Where the rows of a chunk lie, by place: entry 4 g + i is position i * run + g of the chunk.
template <class S>
struct ChunkList {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const S **k_rows, **v_rows;  // [chunk]
  float *k_scales, *v_scales;  // [chunk]; integers only

  ChunkList(Carver& carver, Index chunk)
      : k_rows(carver.take<const S*>(chunk)),
        v_rows(carver.take<const S*>(chunk)),
        k_scales(carver.take<float>(kScaled ? chunk : 0)),
        v_scales(carver.take<float>(kScaled ? chunk : 0)) {}
};

template <class S>
struct CacheDecodeScratch {
  DecodeScratch<S> decode;
  Carver carver;
  ChunkList<S> list{carver, decode.chunk}, next{carver, decode.chunk};  // of this chunk; of the next, whose keys are prefetched
  std::size_t bytes = carver.used();

  CacheDecodeScratch(void* base, Index rows, Index d, Index dv) : decode(base, rows, d, dv), carver(base, decode.bytes) {}
};

/// Fills the list for the chunk at j0. A position that does not exist gets the row of one that does, which may be prefetched
/// but is never used, and a scale of 0.
template <class S>
inline void list_chunk(const HeadKeys& cache, Index j0, Index run, const ChunkList<S>& list) {
  constexpr bool scaled = std::is_same_v<S, std::int8_t>;
  const S* k_row = static_cast<const S*>(cache.k.rows);
  const S* v_row = static_cast<const S*>(cache.v.rows);
  for (Index i = 0; i < kRuns; ++i) {
    Index place = i;
    const auto stand_in_up_to = [&](Index g) {
      for (; place < kRuns * g; place += kRuns) {
        list.k_rows[place] = k_row;
        list.v_rows[place] = v_row;
        if constexpr (scaled) list.k_scales[place] = list.v_scales[place] = 0;
      }
    };
    const Index begin = j0 + i * run;
    for_key_runs(cache, begin, begin + run, [&](Index at, Index page, Index row, Index count) {
      stand_in_up_to(at);
      k_row = key_row<S>(cache.k, page, row);
      v_row = key_row<S>(cache.v, page, row);
      const float *k_scale = nullptr, *v_scale = nullptr;
      if constexpr (scaled) {
        k_scale = key_scales(cache.k, page, row);
        v_scale = key_scales(cache.v, page, row);
      }
      for (Index n = 0; n < count; ++n, place += kRuns) {
        list.k_rows[place] = k_row + n * cache.k.row_stride;
        list.v_rows[place] = v_row + n * cache.v.row_stride;
        if constexpr (scaled) {
          list.k_scales[place] = k_scale[n];
          list.v_scales[place] = v_scale[n];
        }
      }
    });
    stand_in_up_to(run);
  }
}

/// K and V of a group in a cache.
template <class S>
struct CachedChunks {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const HeadKeys& cache;
  ChunkList<S> list, next;
  Index listed = -1;  // the chunk of `next`
  const float *k_scales = nullptr, *v_scales = nullptr;

  CachedChunks(const HeadKeys& head, const CacheDecodeScratch<S>& w) : cache(head), list(w.list), next(w.next) {}

  ChunkRows<ListedRuns<S>> chunk(Index j0, Index keys, const RunShape& k_shape, const RunShape& v_shape) {
    const ChunkList<S> before = list;
    list = next;
    next = before;
    if (listed != j0) list_chunk(cache, j0, k_shape.run, list);
    listed = j0 + keys;
    list_chunk(cache, listed, k_shape.run, next);
    k_scales = list.k_scales;
    v_scales = list.v_scales;
    return {{k_shape, list.k_rows, list.v_rows}, {v_shape, list.v_rows, next.k_rows}};
  }
};

/// A function of its own, so that all types of q share one copy.
template <class S>
[[gnu::noinline]] void decode_cached_chunks(const DecodeGroup<SumOf<S>>& t, const HeadKeys& cache, Index k_begin, Index k_end,
                                            const CacheDecodeScratch<S>& w, const DecodeState<SumOf<S>>& state) {
  CachedChunks<S> chunks(cache, w);
  decode_chunks(t, k_begin, k_end, chunks, w.decode, state);
}

/// The group in the type of sums; its queries have been packed.
template <class Q>
inline DecodeGroup<Accumulator<Q>> sums_group(const DecodeGroup<Q>& t) {
  if constexpr (std::is_same_v<Q, Accumulator<Q>>) {
    return t;
  } else {
    return {t, float_scores(t.scores), nullptr, nullptr, 0, 0, 0, 0};
  }
}

template <class Q>
void decode_cached_part(const DecodeGroup<Q>& t, const HeadKeys& cache, Index k_begin, Index k_end, void* scratch,
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
