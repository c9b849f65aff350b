// y = x W^T on pairs of bf16 for so few rows of x that packing W would cost more than the product: rows of W are read
// once, in place, and transposed in registers, 16 rows x 16 pairs at a time. The chains are those of bf16_product.h, so
// a row of y has one set of bits among any number of rows.
#pragma once

#include "kernels/layers/params.h"
#include "kernels/products/bf16_terms.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

/// The first `count` of 16 numbers, rounded.
inline void store_rounded(BFloat16* row, F32 numbers, Index count) {
  const auto rounded = _mm512_castsi512_si256(reinterpret_cast<__m512i>(round_in_order(numbers, F32{})));
  _mm256_mask_storeu_epi16(row, static_cast<__mmask16>((1u << count) - 1u), rounded);
}

#if !defined(QKV_AMX)
/// Columns [column, column + 16) of kR rows of y; rows past the last repeat it and are not stored.
template <int kR, class Weight>
inline void bf16_few_rows_block(const MatrixProduct<BFloat16>& t, const Weight* w, Index column) {
  constexpr int n = Simd<float>::kLanes;
  constexpr Index numbers = 2 * n;
  const Index width = smaller<Index>(n, t.columns - column);
  const BFloat16* x[kR];
  for (int r = 0; r < kR; ++r) x[r] = t.a + smaller<Index>(r, t.rows - 1) * t.a_row;
  F32 sums[kR];
  for (int r = 0; r < kR; ++r) sums[r] = F32{};
  w += column * t.b_column;
  for (Index k = 0; k < t.depth; k += numbers, w += numbers) {
    const Index left = t.depth - k;
    F32 square[n];
    if (width == n && left >= numbers) {
#pragma GCC unroll 16
      for (int c = 0; c < n; ++c) square[c] = as_f32(load_pairs(w + c * t.b_column, numbers));
    } else {
      for (int c = 0; c < n; ++c) square[c] = c < width ? as_f32(load_pairs(w + c * t.b_column, left)) : F32{};
    }
    transpose_square<float>(square);  // [pair][column]
    const auto step = [&](int i, const auto& splat) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) sums[r] = add_pairs(sums[r], splat(x[r] + k + 2 * i), as_u32(square[i]));
    };
    if (left >= numbers) {
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) step(i, splat_pair);
    } else {
      const int whole = static_cast<int>(left / 2);
      for (int i = 0; i < whole; ++i) step(i, splat_pair);
      if (left % 2 > 0) step(whole, splat_lower);
    }
  }
  const F32 bias = t.bias == nullptr ? F32{} : load_tail<float>(t.bias + column, static_cast<int>(width));
  BFloat16* y = t.c + column;
  for (int r = 0; r < kR && r < t.rows; ++r, y += t.c_row) store_rounded(y, sums[r] + bias, width);
}

/// At most 8 rows.
template <class Weight> inline void bf16_few_rows(const MatrixProduct<BFloat16>& t, const Weight* w) {
  for (Index column = 0; column < t.columns; column += Simd<float>::kLanes) {
    t.rows > 2 ? bf16_few_rows_block<8>(t, w, column) : bf16_few_rows_block<2>(t, w, column);
  }
}
#else
template <class Weight> inline void bf16_few_rows(const MatrixProduct<BFloat16>&, const Weight*) {}
#endif

inline bool is_few_bf16_rows(const MatrixProduct<BFloat16>& t) {
  return !Terms<BFloat16>::kAmxTiles && t.rows <= 8 && t.b_row == 1 && t.b_column != 1 && t.c != nullptr;
}

}  // namespace
}  // namespace qkv
#endif
