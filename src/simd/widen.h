// 16-bit floats in memory, 32-bit ones in registers: loads that widen, stores that round to nearest even (NaN kept,
// quiet). bfloat16 by shifts everywhere; binary16 by vcvtph2ps / vcvtps2ph where the instruction set has them,
// otherwise by the same integer steps on every lane. The members of BFloat16 and Float16 that convert are never called
// here: an inline function shared with the baseline would be merged at link time.
#pragma once

#include <utility>

#include "qkv/types.h"
#include "simd/vec.h"

namespace qkv {
namespace {

typedef std::uint16_t U16 __attribute__((vector_size(QKV_VECTOR_BYTES / 2)));

inline F32 as_f32(U32 bits) { return reinterpret_cast<F32>(bits); }
inline U32 as_u32(F32 x) { return reinterpret_cast<U32>(x); }

#if defined(__AVX512F__)  // GCC 12 makes four shuffles of the conversion
inline U32 zero_extended(U16 halves) {
  return reinterpret_cast<U32>(_mm512_maskz_cvtepu16_epi32(0xFFFF, reinterpret_cast<__m256i>(halves)));
}
#elif defined(__AVX2__)
inline U32 zero_extended(U16 halves) {
  return reinterpret_cast<U32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
}
#else
inline U32 zero_extended(U16 halves) { return __builtin_convertvector(halves, U32); }
#endif

inline F32 widen(U16 halves, BFloat16) { return as_f32(zero_extended(halves) << 16); }

inline U16 narrow(F32 x, BFloat16) {
  const U32 bits = as_u32(x);
  const U32 rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const U32 kept = (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : rounded;
  return __builtin_convertvector(kept >> 16, U16);
}

#if defined(__AVX512F__)
inline F32 widen(U16 halves, Float16) { return _mm512_cvtph_ps(reinterpret_cast<__m256i>(halves)); }
inline U16 narrow(F32 x, Float16) {
  return reinterpret_cast<U16>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__F16C__) && QKV_VECTOR_BYTES == 32
inline F32 widen(U16 halves, Float16) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)); }
inline U16 narrow(F32 x, Float16) { return reinterpret_cast<U16>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
#else
inline F32 widen(U16 halves, Float16) {
  const U32 bits = __builtin_convertvector(halves, U32);
  const U32 sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu, shifted = magnitude << 13;
  const U32 subnormal = as_u32(__builtin_convertvector(reinterpret_cast<I32>(magnitude), F32) * 0x1p-24F);
  const U32 finite = magnitude < 0x400u ? subnormal : shifted + ((127u - 15u) << 23);
  const U32 quiet = magnitude > 0x7C00u ? shifted | 0x7FC00000u : shifted | 0x7F800000u;
  return as_f32(sign | (magnitude < 0x7C00u ? finite : quiet));
}
inline U16 narrow(F32 x, Float16) {  // the steps of Float16(float)
  const U32 bits = as_u32(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  const U32 normal = (magnitude - ((127u - 15u) << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const U32 subnormal = as_u32(as_f32(magnitude) + 0.5F) - 0x3F000000u;
  const U32 nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  U32 result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477FF000u ? U32{} + 0x7C00u : result;
  result = magnitude > 0x7F800000u ? nan : result;
  return __builtin_convertvector(sign | result, U16);
}
#endif

/// Lanes 0 .. 15 of a row as floats.
template <class S> inline F32 load_widened(const S* p) {
  U16 halves;
  __builtin_memcpy(&halves, p, sizeof halves);
  return widen(halves, S{});
}

template <class S> inline void store_narrowed(S* p, F32 x) {
  const U16 halves = narrow(x, S{});
  __builtin_memcpy(static_cast<void*>(p), &halves, sizeof halves);
}

/// Lanes 0 .. n-1 from memory, 0 in the others; memory past n is not touched.
template <class S> inline F32 load_widened_tail(const S* p, int n) {
  U16 halves{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  halves = reinterpret_cast<U16>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1u), p));
#else
  __builtin_memcpy(&halves, p, static_cast<std::size_t>(n) * sizeof(S));
#endif
  return widen(halves, S{});
}

template <class S> inline void store_narrowed_tail(S* p, F32 x, int n) {
  const U16 halves = narrow(x, S{});
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1u), reinterpret_cast<__m256i>(halves));
#else
  __builtin_memcpy(static_cast<void*>(p), &halves, static_cast<std::size_t>(n) * sizeof(S));
#endif
}

/// 2 n numbers, two to a word; of fewer, 0 in the others, and memory past them is not touched.
inline U32 load_words(const BFloat16* p) {
  U32 words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}
inline U32 load_words_tail(const BFloat16* p, int n) {
#if defined(__AVX512BW__)
  return reinterpret_cast<U32>(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << n) - 1), p));
#else
  U32 words{};
  __builtin_memcpy(&words, p, static_cast<std::size_t>(n) * sizeof(BFloat16));
  return words;
#endif
}

/// Of 2 n numbers those of even and of odd index as floats: a shift and a mask, where the order in memory would cost
/// shuffles.
struct EvenOdd {
  F32 even, odd;
};
inline EvenOdd load_even_odd(const BFloat16* p) {
  const U32 words = load_words(p);
  return {as_f32(words << 16), as_f32(words & 0xFFFF0000u)};
}

template <int... kLane> inline EvenOdd split_even_odd(F32 low, F32 high, std::integer_sequence<int, kLane...>) {
  return {__builtin_shufflevector(low, high, (2 * kLane)...), __builtin_shufflevector(low, high, (2 * kLane + 1)...)};
}
/// The numbers of even and of odd index of two vectors in a row.
inline EvenOdd split_even_odd(F32 low, F32 high) {
  return split_even_odd(low, high, std::make_integer_sequence<int, Simd<float>::kLanes>{});
}

template <int... kLane> inline void join_even_odd(F32& even, F32& odd, std::integer_sequence<int, kLane...>) {
  constexpr int n = sizeof...(kLane);
  const F32 low = __builtin_shufflevector(even, odd, (kLane / 2 + kLane % 2 * n)...);
  odd = __builtin_shufflevector(even, odd, ((n + kLane) / 2 + kLane % 2 * n)...);
  even = low;
}
/// The inverse, in place: even becomes the first vector, odd the second.
inline void join_even_odd(F32& even, F32& odd) {
  join_even_odd(even, odd, std::make_integer_sequence<int, Simd<float>::kLanes>{});
}

/// to[r][c] = from[r][c] as float, for rows x columns; rows of `to` follow each other without a gap.
template <class S> inline void widen_rows(const S* from, Index stride, Index rows, Index columns, float* to) {
  constexpr int n = Simd<float>::kLanes;
  for (Index r = 0; r < rows; ++r, from += stride, to += columns) {
    Index c = 0;
    for (; c + n <= columns; c += n) store<float>(to + c, load_widened(from + c));
    const int rest = static_cast<int>(columns - c);
    if (rest > 0) store_tail<float>(to + c, load_widened_tail(from + c, rest), rest);
  }
}

/// to[r][c] = from[r][c] rounded, for rows x columns; rows of `from` follow each other without a gap.
template <class S> inline void narrow_rows(const float* from, Index rows, Index columns, S* to, Index stride) {
  constexpr int n = Simd<float>::kLanes;
  for (Index r = 0; r < rows; ++r, from += columns, to += stride) {
    Index c = 0;
    for (; c + n <= columns; c += n) store_narrowed(to + c, load<float>(from + c));
    const int rest = static_cast<int>(columns - c);
    if (rest > 0) store_narrowed_tail(to + c, load_tail<float>(from + c, rest), rest);
  }
}

}  // namespace
}  // namespace qkv
