// Products of bf16 pairs, two to a 32-bit lane, summed in float: AVX512-BF16's vdpbf16ps and vcvtne2ps2bf16, and
// nothing else of that extension anywhere. Where QKV_BF16_STAND_IN is defined, an exact model of the two, written in
// AVX-512F, replaces them: kernels are tested with it on a CPU without the extension. It is never part of the library.
// Intel SDM, VDPBF16PS and VCVTNE2PS2BF16: round to nearest even, denormals in and out are zero, MXCSR is not
// consulted; each lane adds the product of the upper halves first, then that of the lower, both fused.
#pragma once

#include "simd/widen.h"

#if defined(__AVX512BF16__) || defined(QKV_BF16_STAND_IN)
#define QKV_BF16_PAIRS

namespace qkv {
namespace {

/// Denormals become zero; the sign stays.
inline F32 flushed(F32 x) {
  const U32 bits = as_u32(x);
  return as_f32((bits & 0x7F800000u) == 0 ? bits & 0x80000000u : bits);
}

#if defined(QKV_BF16_STAND_IN)
/// sum + a.upper * b.upper + a.lower * b.lower in each lane.
inline F32 add_pairs(F32 sum, U32 a, U32 b) {
  const F32 upper = fma(flushed(as_f32(a & 0xFFFF0000u)), flushed(as_f32(b & 0xFFFF0000u)), flushed(sum));
  return flushed(fma(flushed(as_f32(a << 16)), flushed(as_f32(b << 16)), flushed(upper)));
}

/// The 16 numbers of `first` rounded, then those of `second`: 32 in the order of memory.
inline U32 round_in_order(F32 first, F32 second) {
  const auto half = [](F32 x) { return reinterpret_cast<__m256i>(narrow(flushed(x), BFloat16{})); };
  return reinterpret_cast<U32>(_mm512_inserti64x4(_mm512_zextsi256_si512(half(first)), half(second), 1));
}
#else
inline F32 add_pairs(F32 sum, U32 a, U32 b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline U32 round_in_order(F32 first, F32 second) { return reinterpret_cast<U32>(_mm512_cvtne2ps_pbh(second, first)); }
#endif

/// Lane i: lower half = lower[i] rounded, upper half = upper[i] rounded.
inline U32 round_pairs(F32 lower, F32 upper) {
  // Of 32 halves word 2 i comes from word i, word 2 i + 1 from word 16 + i.
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i order = _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
  return reinterpret_cast<U32>(
      _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(round_in_order(lower, upper))));
}

/// The pair that begins at p, in every lane; p need not be aligned to 4 bytes.
inline U32 splat_pair(const BFloat16* p) {
  std::uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return U32{} + pair;
}
/// The number at p as the lower half, 0 as the upper one.
inline U32 splat_lower(const BFloat16* p) { return U32{} + std::uint32_t{p->bits}; }

/// Pairs of a row: `count` numbers from p on, 0 in the others; memory past them is not touched.
inline U32 load_pairs(const BFloat16* p, Index count) {
  const int n = static_cast<int>(smaller<Index>(count, 32));
  return reinterpret_cast<U32>(_mm512_maskz_loadu_epi16(static_cast<__mmask32>(~0u >> (32 - n)), p));
}

/// The same of floats, rounded.
inline U32 load_pairs(const float* p, Index count) {
  const auto part = [&](Index begin) {
    return load_tail<float>(p + begin, static_cast<int>(larger<Index>(0, smaller<Index>(count - begin, 16))));
  };
  return count >= 32 ? round_in_order(load<float>(p), load<float>(p + 16))
                     : round_in_order(part(0), count > 16 ? part(16) : F32{});
}

/// Lane i: number i of `lower` in the lower half, of `upper` in the upper one, for i < the count of each; 0 in the
/// others.
inline U32 pair_up(const BFloat16* lower, Index lower_count, const BFloat16* upper, Index upper_count) {
  const auto numbers = [](const BFloat16* p, Index count) {
    const int n = static_cast<int>(smaller<Index>(count, 16));
    const auto mask = static_cast<__mmask16>((1u << n) - 1u);
    return reinterpret_cast<U32>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)));
  };
  return numbers(lower, lower_count) | numbers(upper, upper_count) << 16;
}

inline U32 pair_up(const float* lower, Index lower_count, const float* upper, Index upper_count) {
  const auto numbers = [](const float* p, Index count) {
    return count > 0 ? load_tail<float>(p, static_cast<int>(smaller<Index>(count, 16))) : F32{};
  };
  return round_pairs(numbers(lower, lower_count), numbers(upper, upper_count));
}

inline U32 load_u32(const std::uint32_t* p) {
  U32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline U32 load_u32_tail(const std::uint32_t* p, int n) {
  return reinterpret_cast<U32>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1u), p));
}
inline void store_u32(std::uint32_t* p, U32 v) { __builtin_memcpy(p, &v, sizeof v); }

}  // namespace
}  // namespace qkv
#endif
