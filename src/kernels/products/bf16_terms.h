// Products of attention on bf16 pairs: a step of the depth is two numbers, in B one 32-bit word. And how such words are
// made: from rows in pairs along their width, from two rows interleaved, from floats rounded.
#pragma once

#include "kernels/products/amx_terms.h"
#include "kernels/products/pair_terms.h"
#include "simd/transpose.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

static_assert(kVectors == 2 && Simd<float>::kLanes == 16);

constexpr Index pairs_of(Index count) { return (count + 1) / 2; }

#if !defined(QKV_AMX)
template <> struct Terms<BFloat16> : PairTerms {
  static constexpr Index kStep = kNumbers;
  static constexpr bool kAmxTiles = false;
  static F32 multiply_add(U32 a, U32 b, F32 sum) { return add_pairs(sum, a, b); }
};
#endif

/// The whole steps of the depth that contain the numbers [lo, hi), counted in pairs from where the product begins.
struct PairSpan {
  Index begin, end;
};
constexpr PairSpan whole_steps(Index lo, Index hi) {
  constexpr Index step = Terms<BFloat16>::kStep;
  return {lo / step * (step / 2), (hi + step - 1) / step * (step / 2)};
}

/// Strides, in 32-bit words, of interleaved rows as the operand A: pairs lie side by side along the rows' width or, for
/// AMX tiles, along the depth.
struct PairStrides {
  Index pair, column;
};

/// panels[row / panel][k][row % panel] = numbers 2 k and 2 k + 1 of a row, 0 past the ends of rows and columns. The
/// transpose moves words as floats but never computes with them.
template <class Number> [[gnu::noinline]] void pack_pairs(
    const Number* rows, Index stride, Index count, Index width, Index panel, std::uint32_t* panels) {
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

/// pairs[k][d] = rows 2 k and 2 k + 1 of floats at column d < width, rounded, `row` words apart, 0 past the last row.
[[gnu::noinline, maybe_unused]] void pair_up_rows(
    const float* rows, Index stride, Index count, Index width, Index row, std::uint32_t* pairs) {
  for (Index j = 0; j < count; j += 2, pairs += row) {
    const float *lower = rows + j * stride, *upper = lower + stride;
    for (Index d = 0; d < width; d += 16) {
      const U32 words = pair_up(lower + d, width - d, upper + d, j + 1 < count ? width - d : 0);
      _mm512_mask_storeu_epi32(pairs + d, static_cast<__mmask16>((1u << smaller<Index>(16, width - d)) - 1u),
          reinterpret_cast<__m512i>(words));
    }
  }
}

/// The same of bf16.
[[gnu::noinline, maybe_unused]] void pair_up_rows(
    const BFloat16* rows, Index stride, Index count, Index width, Index row, std::uint32_t* pairs) {
  for (Index j = 0; j < count; j += 2, pairs += row) {
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

/// The same transposed: columns[d][k], `row` words apart, zeros up to a whole step of pairs.
inline void pair_up_columns(
    const BFloat16* rows, Index stride, Index count, Index width, Index row, std::uint32_t* columns) {
  constexpr Index n = Simd<float>::kLanes;
  for (Index k0 = 0; 2 * k0 < count; k0 += n) {
    for (Index d0 = 0; d0 < width; d0 += n) {
      F32 square[n];
      for (Index i = 0; i < n; ++i) {
        const Index j = 2 * (k0 + i);
        const BFloat16* const lower = rows + j * stride + d0;
        square[i] = as_f32(pair_up(lower, j < count ? width - d0 : 0, lower + stride, j + 1 < count ? width - d0 : 0));
      }
      transpose_square<float>(square);
      for (Index d = 0; d < smaller(n, width - d0); ++d) store_u32(columns + (d0 + d) * row + k0, as_u32(square[d]));
    }
  }
}

/// Pair k of rows of floats at vector v of lanes, rounded; rows outside [lo, hi) count as 0.
inline U32 round_pair(const float* rows, Index row, Index lo, Index hi, Index k, int v) {
  const float* const both = rows + 2 * k * row + v * Simd<float>::kLanes;
  const F32 lower = 2 * k >= lo && 2 * k < hi ? load<float>(both) : F32{};
  const F32 upper = 2 * k + 1 >= lo && 2 * k + 1 < hi ? load<float>(both + row) : F32{};
  return round_pairs(lower, upper);
}

/// pairs[k][lane] = rows 2 k and 2 k + 1 of floats, rounded, for the whole steps that contain rows [lo, hi) and vectors
/// [first, first + count) of lanes; rows outside [lo, hi) count as 0. Rows of both are `row` apart.
inline void round_pairs_of_rows(
    const float* rows, Index row, Index lo, Index hi, int first, int count, std::uint32_t* pairs) {
  const PairSpan steps = whole_steps(lo, hi);
  for (Index k = steps.begin; k < steps.end; ++k) {
    for (int v = first; v < first + count; ++v) {
      store_u32(pairs + k * row + v * Simd<float>::kLanes, round_pair(rows, row, lo, hi, k, v));
    }
  }
}

/// The same of vector v transposed: lanes[lane][k], `lane_row` words apart, for rows [0, 2 * lane_row).
inline void round_pairs_of_lanes(
    const float* rows, Index row, Index lo, Index hi, int v, Index lane_row, std::uint32_t* lanes) {
  constexpr Index n = Simd<float>::kLanes;
  for (Index k0 = 0; k0 < lane_row; k0 += n) {
    F32 square[n];
    for (Index i = 0; i < n; ++i) square[i] = as_f32(round_pair(rows, row, lo, hi, k0 + i, v));
    transpose_square<float>(square);
    for (Index lane = 0; lane < n; ++lane) store_u32(lanes + (v * n + lane) * lane_row + k0, as_u32(square[lane]));
  }
}

/// Whether rows hold NaN or infinity: 0 times such a number is NaN.
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
