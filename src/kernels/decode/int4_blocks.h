// blocks.h for rows of 4-bit integers: a row is unpacked once for all queries of a block.
#pragma once

#include "kernels/decode/blocks.h"
#include "simd/int4.h"

namespace qkv {
namespace {

inline const std::byte* bytes_of(const Int4* row) { return reinterpret_cast<const std::byte*>(row); }

/// Prefetches the lines of some of four rows.
template <class Rows>
inline __attribute__((always_inline)) void fetch_rows(const Rows& rows, const SomeRuns& some, Index width) {
  const Index bytes = row_bytes(StoredType::kInt4, width);
  const auto lines = [&](auto to) __attribute__((always_inline)) {
    for (Index x = 0; x < bytes; x += 64) {
#pragma GCC unroll 4
      for (Index i = 0; i < kRuns; ++i) {
        if (some.hold(i)) fetch<to>(bytes_of(rows[i]) + x);
      }
    }
  };
  some.into_l2 ? lines(FetchTo<Fetch::kL2>{}) : lines(FetchTo<Fetch::kAll>{});
}

/// acc[r][i] += q[r] . k[i] over a piece's numbers; q ends with zeros (kQueryUnit).
template <int kR, int kBytes> inline __attribute__((always_inline)) void add_piece(
    const float* q, const std::byte* const* rows, Index to_scales, Index to_words, F32 (&acc)[kR][kRuns]) {
  constexpr int n = Simd<float>::kLanes, columns = 2 * kBytes;
  Four scales[kRuns];
#pragma GCC unroll 4
  for (int i = 0; i < kRuns; ++i) scales[i] = load_scales<kBytes>(rows[i] + to_scales);
  asm("" : "+m"(scales));  // multiplied from memory, which costs nothing more
  for (int part = 0; part < kInt4Parts; ++part) {
    U32 words[kRuns];
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) words[i] = load_words_of<kBytes>(rows[i] + to_words + part * n * kBytes);
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      const int at = 16 * c + part * n;
      F32 key[kRuns];
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) {
        key[i] = Int4Levels{}.times(scales[i][c / 2]).of(words[i] >> static_cast<unsigned>(4 * c));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kR; ++r) {
        const F32 query = load<float>(q + kR * at + r * n);
#pragma GCC unroll 4
        for (int i = 0; i < kRuns; ++i) acc[r][i] = fma(query, key[i], acc[r][i]);
      }
      keep_order();
    }
  }
}

/// dot_block.
template <int kR, class Rows> inline __attribute__((always_inline)) void dot_pieces(const float* q, const Rows& k,
    const SomeRuns& live, Index head_dim, const Rows& soon, const SomeRuns& fetched, float* scores) {
  const std::byte* rows[kRuns];
#pragma GCC unroll 4
  for (Index i = 0; i < kRuns; ++i) rows[i] = bytes_of(k[i]);
  if (live.last - live.first < kRuns) {
    for (Index i = 0; i < kRuns; ++i) rows[i] = bytes_of(k[larger(live.first, smaller(i, live.last - 1))]);
  }
  fetch_rows(soon, fetched, head_dim);
  F32 acc[kR][kRuns];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) acc[r][i] = F32{};
  }
  for_pieces(
      head_dim, [&](auto bytes, Index d, Index to_scales, Index to_words) __attribute__((always_inline)) {
        add_piece<kR, bytes>(q + kR * d, rows, to_scales, to_words, acc);
      });
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) store_sums<float>(acc[r], scores + r * kChunkLimit);
}

/// value_block for lanes [part n, (part + 1) n) of kColumns columns of 16 numbers of a piece that begins at number d,
/// from column `first` on, a multiple of 4.
template <int kR, int kBytes, int kColumns, class Chunk> inline __attribute__((always_inline)) void value_columns(
    const float* weights, const Chunk& v, Index begin, Index end, Index to_scales, Index to_words, Index d, int first,
    int part, Index width, float* out, Index out_row, const float* factor, const SomeRuns& fetched) {
  constexpr int n = Simd<float>::kLanes;
  F32 acc[kR][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) acc[r][c] = F32{};
  }
  const auto add = [&](const Int4* row, const float* weight) __attribute__((always_inline)) {
    const Four scales = load_scales<kBytes>(bytes_of(row) + to_scales);
    Four factors = scales;  // of levels; of one query with its weight
    if constexpr (kR == 1) factors *= weight[0];
    asm("" : "+m"(factors));
    const int begin_column = kColumns == 2 * kBytes ? 0 : first;
    U32 words = load_words_of<kBytes>(bytes_of(row) + to_words + part * n * kBytes);
    if (begin_column > 0) words >>= 16;
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const U32 column = words >> static_cast<unsigned>(4 * c);
      const float by = factors[(begin_column + c) / 2];
      if constexpr (kR == 1) {
        acc[0][c] = fma(splat<float>(by), Int4Levels{}.of(column), acc[0][c]);
      } else {
        const F32 value = Int4Levels{}.times(by).of(column);
#pragma GCC unroll 4
        for (int r = 0; r < kR; ++r) acc[r][c] = fma(splat<float>(weight[r * kChunkLimit]), value, acc[r][c]);
      }
    }
  };
  for (Index g = begin; g < end; ++g) {
    const auto rows = v.row(g);
    const SomeRuns live = v.live(g);
    if (d + first + part == 0 && live.last - live.first == kRuns) fetch_rows(v.soon(g), fetched, width);
    for (Index i = live.first; i < live.last; ++i) {
      add(rows[i], weights + kRuns * g + i);
      keep_order();
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
    const F32 f = splat<float>(factor[r]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const Index column = d + 16 * (first + c) + part * n;
      if (column >= width) continue;
      float* const slot = out + r * out_row + column;
      store<float>(slot, fma(load<float>(slot), f, acc[r][c]));
    }
  }
}

/// value_rows: as many columns at a time as fill the registers.
template <int kR, class Chunk> inline void value_pieces(const float* weights, const Chunk& v, Index begin, Index end,
    Index width, float* out, Index out_row, const float* factor, const SomeRuns& fetched) {
  for_pieces(
      width, [&](auto bytes, Index d, Index to_scales, Index to_words) __attribute__((always_inline)) {
        constexpr int columns = smaller<int>(2 * bytes, kR == 1 ? 2 * kValueVectors : kValueVectors);
        for (int first = 0; first < 2 * bytes; first += columns) {
          for (int part = 0; part < kInt4Parts; ++part) {
            value_columns<kR, bytes, columns>(
                weights, v, begin, end, to_scales, to_words, d, first, part, width, out, out_row, factor, fetched);
          }
        }
      });
}

}  // namespace
}  // namespace qkv
