// 8-bit integers in memory, 32-bit floats in registers: loads that widen, stores that keep the low byte.
#pragma once

#include <cstdint>

#include "simd/vec.h"

namespace qkv {
namespace {

typedef std::int8_t I8 __attribute__((vector_size(QKV_VECTOR_BYTES / 4)));

#if defined(__AVX512F__)  // GCC 12 makes shuffles of the conversions
inline F32 widen(I8 bytes) {
  const __m512i wide = _mm512_maskz_cvtepi8_epi32(static_cast<__mmask16>(-1), reinterpret_cast<__m128i>(bytes));
  return _mm512_maskz_cvtepi32_ps(static_cast<__mmask16>(-1), wide);
}
#elif defined(__AVX2__)
inline F32 widen(I8 bytes) {
  std::int64_t eight;
  __builtin_memcpy(&eight, &bytes, sizeof eight);
  return reinterpret_cast<F32>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(eight))));
}
#else
inline F32 widen(I8 bytes) { return __builtin_convertvector(__builtin_convertvector(bytes, I32), F32); }
#endif

inline F32 load_widened(const std::int8_t* p) {
  I8 bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return widen(bytes);
}

/// Lanes 0 .. n-1 from memory, 0 in the others; memory past n is not touched.
inline F32 load_widened_tail(const std::int8_t* p, int n) {
  I8 bytes{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  bytes = reinterpret_cast<I8>(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << n) - 1u), p));
#else
  __builtin_memcpy(&bytes, p, static_cast<std::size_t>(n));
#endif
  return widen(bytes);
}

}  // namespace
}  // namespace qkv
