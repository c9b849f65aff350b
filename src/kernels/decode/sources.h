// Where decode's loops read K and V, chunk by chunk and in their storage type: rows a constant distance apart, or lists
// of row pointers, so that pages may have any size. Integers are multiplied as they are; a score is then scaled by its
// key's scale, a weight by its value's.
#pragma once

#include "kernels/cache/rows.h"
#include "kernels/decode/scores.h"

namespace qkv {
namespace {

/// Where the rows of a chunk lie, by slot: entry 4 g + i is position i * run + g of the chunk.
template <class S> struct ChunkList {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const S **k_rows, **v_rows;  // [chunk]
  float *k_scales, *v_scales;  // [chunk]; integers only

  ChunkList(Carver& carver, Index chunk)
      : k_rows(carver.array<const S*>(chunk)),
        v_rows(carver.array<const S*>(chunk)),
        k_scales(carver.array<float>(kScaled ? chunk : 0)),
        v_scales(carver.array<float>(kScaled ? chunk : 0)) {}
};

template <class S> struct ListedScratch {
  DecodeScratch<SumOf<S>> decode;
  Carver carver;
  ChunkList<S> list{carver, decode.chunk},
      next{carver, decode.chunk};  // of this chunk; of the next, whose keys are prefetched
  std::size_t bytes = carver.used();

  ListedScratch(void* base, Index rows, Index d, Index dv)
      : decode(base, rows, d, kQueryUnit<S>, decode_chunk<S>(d, dv), takes_lanes<S>(rows)),
        carver(base, decode.bytes) {}
};

/// Fills the list for the chunk at j0. A position that does not exist gets the row of one that does, which may be
/// prefetched but is never used, and a scale of 0.
template <class S> inline void list_chunk(const HeadKeys& keys, Index j0, Index run, const ChunkList<S>& list) {
  constexpr bool scaled = std::is_same_v<S, std::int8_t>;
  const S* k_row = static_cast<const S*>(keys.k.rows);
  const S* v_row = static_cast<const S*>(keys.v.rows);
  for (Index i = 0; i < kRuns; ++i) {
    Index slot = i;
    const auto fill_missing_up_to = [&](Index g) {
      for (; slot < kRuns * g; slot += kRuns) {
        list.k_rows[slot] = k_row;
        list.v_rows[slot] = v_row;
        if constexpr (scaled) list.k_scales[slot] = list.v_scales[slot] = 0;
      }
    };
    const Index begin = j0 + i * run;
    for_key_runs(keys, begin, begin + run, [&](Index at, Index page, Index row, Index count) {
      fill_missing_up_to(at);
      k_row = key_row<S>(keys.k, page, row);
      v_row = key_row<S>(keys.v, page, row);
      const float *k_scale = nullptr, *v_scale = nullptr;
      if constexpr (scaled) {
        k_scale = key_scales(keys.k, page, row);
        v_scale = key_scales(keys.v, page, row);
      }
      for (Index n = 0; n < count; ++n, slot += kRuns) {
        list.k_rows[slot] = k_row + n * keys.k.row_stride;
        list.v_rows[slot] = v_row + n * keys.v.row_stride;
        if constexpr (scaled) {
          list.k_scales[slot] = k_scale[n];
          list.v_scales[slot] = v_scale[n];
        }
      }
    });
    fill_missing_up_to(run);
  }
}

/// K and V in pages of any size.
template <class S> struct ListedChunks {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const HeadKeys& keys;
  ChunkList<S> list, next;
  Index listed = -1;  // the chunk of `next`
  const float *k_scales = nullptr, *v_scales = nullptr;

  ListedChunks(const HeadKeys& head, const ListedScratch<S>& w) : keys(head), list(w.list), next(w.next) {}

  ChunkRows<ListedRuns<S>> chunk(Index j0, Index count, const RunShape& k_shape, const RunShape& v_shape) {
    const ChunkList<S> before = list;
    list = next;
    next = before;
    if (listed != j0) list_chunk(keys, j0, k_shape.run, list);
    listed = j0 + count;
    list_chunk(keys, listed, k_shape.run, next);
    k_scales = list.k_scales;
    v_scales = list.v_scales;
    return {{k_shape, list.k_rows, list.v_rows}, {v_shape, list.v_rows, next.k_rows}};
  }
};

/// K and V whose chunks each lie in one page, rows a constant distance apart.
template <class S> struct PageChunks {
  static constexpr bool kScaled = std::is_same_v<S, std::int8_t>;
  const HeadKeys& keys;
  float *k_scales, *v_scales;  // [chunk] by slot; integers only

  PageChunks(const HeadKeys& head, const ListedScratch<S>& w)
      : keys(head), k_scales(w.list.k_scales), v_scales(w.list.v_scales) {}

  struct Row {
    Index page, row;  // row < 0: before the first key
  };
  Row at(Index j) const {
    const Index from = j - keys.origin;
    if (keys.num_pages == 1) return {keys.page(0), from < keys.page_rows ? from : from % keys.page_rows};
    return {keys.page(from / keys.page_rows % keys.num_pages), from % keys.page_rows};
  }
  const S* row(const KeyMatrix& matrix, Index j) const { return key_row<S>(matrix, at(j).page, at(j).row); }

  /// The scales of the chunk at j0 by slot, 0 where there is no key.
  void order_scales(const KeyMatrix& matrix, Index j0, Index run, float* by_slot) const {
    const Row first = at(j0);
    order_by_slot(key_scales(matrix, first.page, first.row), run, -first.row, keys.held.end - j0, by_slot);
  }
  ChunkRows<Runs<S>> chunk(Index j0, Index count, const RunShape& k_shape, const RunShape& v_shape) const {
    if constexpr (kScaled) {
      order_scales(keys.k, j0, k_shape.run, k_scales);
      order_scales(keys.v, j0, k_shape.run, v_scales);
    }
    const S *k = row(keys.k, j0), *v = row(keys.v, j0);
    // Rows prefetched at the end of a head's only page is mostly the next head.
    const S* next =
        keys.num_pages > 1 && j0 + count < keys.held.end ? row(keys.k, j0 + count) : k + count * keys.k.row_stride;
    return {{k_shape, k, v, keys.k.row_stride, keys.v.row_stride},
        {v_shape, v, next, keys.v.row_stride, keys.k.row_stride}};
  }
};

/// Whether PageChunks applies.
inline bool chunks_in_pages(const HeadKeys& keys, Index chunk) {
  if (keys.pinned.end != 0) return false;
  const bool whole = keys.num_pages == 1 && keys.held.end - keys.origin <= keys.page_rows;
  return whole || (keys.origin == 0 && keys.page_rows % chunk == 0);
}

}  // namespace
}  // namespace qkv
