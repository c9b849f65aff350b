// vec.h's operations in AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include "simd/vec_portable.h"

namespace qkv {
namespace {

using portable::load;
using portable::load_tail;
using portable::multiply_wide;
using portable::select_bits;
using portable::splat;
using portable::store;
using portable::store_tail;

inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F64 fma(F64 a, F64 b, F64 c) { return _mm256_fmadd_pd(a, b, c); }

inline F32 max_or_second(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F64 max_or_second(F64 a, F64 b) { return _mm256_max_pd(a, b); }

inline std::uint32_t sign_bits(I32 lanes) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(lanes)));
}
inline std::uint32_t sign_bits(I64 lanes) {
  return static_cast<std::uint32_t>(_mm256_movemask_pd(reinterpret_cast<__m256d>(lanes)));
}

}  // namespace
}  // namespace qkv
