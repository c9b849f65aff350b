// Where the rows that kernels read and write lie, as plain data. Letters as in attention.h.
#pragma once

#include <cstddef>

#include "qkv/types.h"

namespace qkv {

/// Rows of one head of q, out, dout or dq.
struct Rows {
  std::byte* data = nullptr;  // of the first row; null: none
  StoredType type = StoredType::kF32;
  Index stride = 0;  // between rows, in elements
};

/// What a row of kInt4 consists of: sixteen integers, or four scales in f16, each for 32 numbers. Of each 128 numbers
/// come the scales first, then the integers of those 32 that there are: simd/int4.h.
struct Int4 {
  std::uint64_t sixteen;
};

/// Elements of a stored row of `width` numbers.
[[gnu::always_inline]] constexpr Index row_elements(StoredType type, Index width) {
  if (type != StoredType::kInt4) return width;
  const Index rest = width % 128;
  return width / 128 * 9 + (rest == 0 ? 0 : 1 + (rest + 31) / 32 * 2);
}
[[gnu::always_inline]] constexpr Index row_bytes(StoredType type, Index width) {
  return row_elements(type, width) * stored_bytes(type);
}

/// K or V of one (sequence, key/value head).
struct KeyMatrix {
  const void* rows;                                  // row 0 of page 0
  const float* scales;                               // of the same row; kInt8 only: row = scale * integers
  Index page_stride, row_stride, scale_page_stride;  // in elements; scales of a page follow each other
};

/// Keys [begin, end).
struct KeyRange {
  Index begin = 0, end = 0;
};

/// K, V and where their rows lie: key j is row (j - origin) % page_rows of page pages[(j - origin) / page_rows %
/// num_pages]. Dense rows and a contiguous cache are one page, a list of keys is pages of one row, a page that is
/// reused in turn is a ring. A ring's pinned keys, which are never overwritten, lie behind it: row page_rows + j of its
/// page. Other keys are never read: the mask must keep none of them.
struct HeadKeys {
  StoredType type;
  KeyMatrix k, v;      // rows of D and Dv
  const Index* pages;  // [num_pages]; null: page 0 alone
  Index num_pages, page_rows;
  KeyRange pinned, held;  // pinned.end = 0: none; held: the others, from pinned.end on
  Index origin = 0;       // the key in row 0 of the first page; 0 where keys are pinned
  bool into_l2 = false;   // a few queries prefetch rows into L2 alone

  [[gnu::always_inline]] Index page(Index n) const { return pages == nullptr ? 0 : pages[n]; }
};

}  // namespace qkv
