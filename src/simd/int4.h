// Integers of 4 bits in memory, 32-bit floats in registers: the pieces of a stored row. An integer times its scale is
// exact in 32 bits.
#pragma once

#include "simd/widen.h"

namespace qkv {
namespace {

/// A piece of a row holds 32 kBytes numbers: 16 words of kBytes bytes, of which word w holds in bits 4 p .. 4 p + 3 its
/// number 16 p + w, plus 8.
template <int kBytes> using PieceOf = std::integral_constant<int, kBytes>;

/// Vectors of 16 numbers.
constexpr int kInt4Parts = 16 / Simd<float>::kLanes;

/// Calls body(PieceOf, d, scales, words) for each piece of a row of `width` numbers: its first number, and after how
/// many bytes of the row its scales, in f16, and its words come. Pieces of 128, then of 32; a rest above 96 takes 128.
template <class Body> inline __attribute__((always_inline)) void for_pieces(Index width, const Body& body) {
  Index d = 0, at = 0;
  for (; width - d > 96; d += 128, at += 72) body(PieceOf<4>{}, d, at, at + 8);
  for (Index piece = 0; d < width; ++piece, d += 32) body(PieceOf<1>{}, d, at + 2 * piece, at + 8 + 16 * piece);
}

typedef std::uint8_t U8 __attribute__((vector_size(QKV_VECTOR_BYTES / 4)));

typedef float Four __attribute__((vector_size(16)));

/// The scales of a piece, 1 or 4.
template <int kBytes> inline __attribute__((always_inline)) Four load_scales(const std::byte* p) {
  std::uint64_t bits = 0;  // a word: a vector read at once from what was written in parts would wait
  __builtin_memcpy(&bits, p, kBytes * 2);
#if defined(__AVX512VL__)
  return _mm_maskz_cvtph_ps(15, _mm_cvtsi64_si128(static_cast<std::int64_t>(bits)));
#elif defined(__F16C__)
  return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<std::int64_t>(bits)));
#else
  U16 halves{};
  __builtin_memcpy(&halves, &bits, sizeof bits);
  const F32 wide = widen(halves, Float16{});
  Four four;
  __builtin_memcpy(&four, &wide, sizeof four);
  return four;
#endif
}

/// Words of a piece in the lanes, from the first one's bytes on.
template <int kBytes> inline __attribute__((always_inline)) U32 load_words_of(const std::byte* p) {
  std::conditional_t<kBytes == 4, U32, U8> words;
  __builtin_memcpy(&words, p, sizeof words);
  if constexpr (kBytes == 4) {
    return words;
  } else {
#if defined(__AVX512F__)
    return reinterpret_cast<U32>(_mm512_maskz_cvtepu8_epi32(0xFFFF, reinterpret_cast<__m128i>(words)));
#elif defined(__AVX2__)
    return reinterpret_cast<U32>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(reinterpret_cast<std::int64_t>(words))));
#else
    return __builtin_convertvector(words, U32);
#endif
  }
}
template <int kBytes> inline void store_words_of(std::byte* p, U32 words) {
  const auto narrow = __builtin_convertvector(words, std::conditional_t<kBytes == 4, U32, U8>);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

/// The scale of numbers up to `largest`: the least f16 that is a seventh of it or more; NaN, as f16, if there is none.
struct Int4Scale {
  std::uint16_t bits;
  float inverse;  // 0 of 0
};
inline Int4Scale int4_scale(float largest) {
  U16 half = narrow(splat<float>(largest / 7), Float16{});
  if (widen(half, Float16{})[0] * 7 < largest) half += 1;
  const float scale = widen(half, Float16{})[0];
  if (!(scale <= 65504)) return {0x7E00, 0};
  return {half[0], scale > 0 ? 1 / scale : 0};
}

/// The integers in the lowest 4 bits of the lanes, times a scale.
struct Int4Levels {
#if defined(__AVX512F__)  // a permutation looks at these bits alone
  F32 levels = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  F32 of(U32 words) const { return _mm512_maskz_permutexvar_ps(0xFFFF, reinterpret_cast<__m512i>(words), levels); }
#else
  F32 levels = splat<float>(1);
  F32 of(U32 words) const { return __builtin_convertvector(reinterpret_cast<I32>(words & 15u) - 8, F32) * levels; }
#endif
  Int4Levels times(float scale) const { return {levels * splat<float>(scale)}; }
};

}  // namespace
}  // namespace qkv
