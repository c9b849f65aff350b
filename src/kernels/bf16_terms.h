// Products of attention on bf16 pairs: a step of the depth is two numbers, read of A where they lie beside each other, of B as
// one 32-bit word of a panel or of two rows paired up. And the ways to such words: rows in pairs along their width, two rows
// paired up number by number, floats rounded. Not: which products there are (bf16.h, bf16_backward.h); AMX.
#pragma once

#include "kernels/gemm.h"
#include "simd/bf16_pairs.h"
#include "simd/transpose.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

static_assert(kVectors == 2 && Simd<float>::kLanes == 16);

constexpr Index pairs_of(Index count) { return (count + 1) / 2; }

template <>
struct Terms<BFloat16> {
  using A = BFloat16;
  using B = std::uint32_t;
  using Sum = float;
  static constexpr Index kNumbers = 2;
  static U32 splat_a(const BFloat16* a) { return splat_pair(a); }
  static U32 splat_last(const BFloat16* a) { return splat_lower(a); }
  static U32 load_b(const std::uint32_t* b) { return load_u32(b); }
  static U32 load_b_tail(const std::uint32_t* b, int n) { return load_u32_tail(b, n); }
  static F32 multiply_add(U32 a, U32 b, F32 sum) { return add_pairs(sum, a, b); }
  static U32 keep(U32 b, bool lower, bool upper) { return b & ((lower ? 0xFFFFu : 0u) | (upper ? 0xFFFF0000u : 0u)); }
};

/// panels[row / panel][k][row % panel] = numbers 2 k and 2 k + 1 of a row, 0 past the ends of rows and columns. Words are
/// moved, never computed with: as floats they may be anything.
inline void pack_pairs(const BFloat16* rows, Index stride, Index count, Index width, Index panel, std::uint32_t* panels) {
  constexpr int n = Simd<float>::kLanes;
  for (Index r0 = 0; r0 < count; r0 += n) {
    std::uint32_t* const lanes = panels + r0 / panel * panel * pairs_of(width) + r0 % panel;
    for (Index c0 = 0; c0 < width; c0 += 2 * n) {
      F32 square[n];
      for (int r = 0; r < n; ++r) {
        square[r] = r0 + r < count ? as_f32(load_pairs(rows + (r0 + r) * stride + c0, width - c0)) : F32{};
      }
      transpose_square<float>(square);
      const Index live = smaller<Index>(n, pairs_of(width - c0));
      for (Index c = 0; c < live; ++c) store_u32(lanes + (c0 / 2 + c) * panel, as_u32(square[c]));
    }
  }
}

/// pairs[k][d] = rows 2 k and 2 k + 1 at column d, 0 past the last row.
inline void pair_up_rows(const BFloat16* rows, Index stride, Index count, Index width, std::uint32_t* pairs) {
  for (Index j = 0; j < count; j += 2, pairs += width) {
    const BFloat16 *lower = rows + j * stride, *upper = lower + stride;
    Index d = 0;
    for (; d + 16 <= width; d += 16) {
      U16 a, b{};
      __builtin_memcpy(&a, lower + d, sizeof a);
      if (j + 1 < count) __builtin_memcpy(&b, upper + d, sizeof b);
      store_u32(pairs + d, zero_extended(a) | zero_extended(b) << 16);
    }
    for (; d < width; ++d) pairs[d] = lower[d].bits | (j + 1 < count ? std::uint32_t{upper[d].bits} << 16 : 0u);
  }
}

/// pairs[k][lane] = rows 2 k and 2 k + 1 of floats rounded, for the rows [lo, hi) and vectors [first, first + count) of lanes;
/// rows outside count as 0. Rows of both are `row` apart.
inline void round_pairs_of_rows(const float* rows, Index row, Index lo, Index hi, int first, int count, std::uint32_t* pairs) {
  constexpr int n = Simd<float>::kLanes;
  for (Index k = lo / 2; k < pairs_of(hi); ++k) {
    for (int v = first; v < first + count; ++v) {
      const float* const both = rows + 2 * k * row + v * n;
      const F32 lower = 2 * k >= lo ? load<float>(both) : F32{};
      const F32 upper = 2 * k + 1 < hi ? load<float>(both + row) : F32{};
      store_u32(pairs + k * row + v * n, round_pairs(lower, upper));
    }
  }
}

/// True when rows hold NaN or infinity, of which 0 times is NaN.
inline bool holds_nonfinite(const BFloat16* rows, Index stride, Index count, Index width) {
  F32 sum{};
  for (Index i = 0; i < count; ++i) {
    for (Index c = 0; c < width; c += 32) sum = add_pairs(sum, load_pairs(rows + i * stride + c, width - c), U32{});
  }
  return bits_where<float>(sum != sum) != 0;
}

}  // namespace
}  // namespace qkv
#endif
