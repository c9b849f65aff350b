// vec.h's operations in AVX-512 (F, BW, DQ, VL): masks are registers of their own, so a tail is one load.
#pragma once

#include <immintrin.h>

#include "simd/vec_portable.h"

namespace qkv {
namespace {

using portable::load;
using portable::multiply_wide;
using portable::splat;
using portable::store;

template <class T> inline typename Simd<T>::V load_tail(const T* p, int n) {
  if constexpr (sizeof(T) == 4) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
  } else {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1u), p);
  }
}

template <class T> inline void store_tail(T* p, typename Simd<T>::V v, int n) {
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1u), v);
  }
}

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F64 fma(F64 a, F64 b, F64 c) { return _mm512_fmadd_pd(a, b, c); }

// The masked form with every lane set is the plain instruction; GCC 12 warns of the plain intrinsic's undefined
// operand.
inline F32 max_or_second(F32 a, F32 b) { return _mm512_maskz_max_ps(static_cast<__mmask16>(-1), a, b); }
inline F64 max_or_second(F64 a, F64 b) { return _mm512_maskz_max_pd(static_cast<__mmask8>(-1), a, b); }

template <class V> inline V select_bits(std::uint32_t bits, V yes, V no) {
  if constexpr (std::is_same_v<V, F32>) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), no, yes);
  } else {
    return _mm512_mask_blend_pd(static_cast<__mmask8>(bits), no, yes);
  }
}

inline std::uint32_t sign_bits(I32 lanes) { return _mm512_movepi32_mask(reinterpret_cast<__m512i>(lanes)); }
inline std::uint32_t sign_bits(I64 lanes) { return _mm512_movepi64_mask(reinterpret_cast<__m512i>(lanes)); }

}  // namespace
}  // namespace qkv
