// vec.h's operations in SVE at one fixed length (-msve-vector-bits=256 or 512): the vectors of lanes.h are then SVE
// registers, and a tail is a predicate.
#pragma once

#include <arm_sve.h>

#include "simd/vec_portable.h"

namespace qkv {
namespace {

using portable::max_or_second;
using portable::select_bits;

typedef svfloat32_t SveF32 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svfloat64_t SveF64 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svint32_t SveI32 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svint64_t SveI64 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svuint32_t SveU32 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svuint64_t SveU64 __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));

inline svbool_t first_lanes(int n, float) { return svwhilelt_b32(0, n); }
inline svbool_t first_lanes(int n, double) { return svwhilelt_b64(0, n); }

// As a loop's operand GCC 12 makes this one load; of the extensions' x - 0 it makes a load and a copy between
// registers.
template <class T> inline typename Simd<T>::V splat(T x) {
  if constexpr (sizeof(T) == 4) {
    return svdup_f32(x);
  } else {
    return svdup_f64(x);
  }
}

// Not through memcpy: GCC 12 copies a vector of 32 bytes through the stack, as two of 16.
template <class T> inline typename Simd<T>::V load(const T* p) { return svld1(svptrue_b8(), p); }
template <class T> inline void store(T* p, typename Simd<T>::V v) {
  if constexpr (sizeof(T) == 4) {
    svst1(svptrue_b8(), p, static_cast<SveF32>(v));
  } else {
    svst1(svptrue_b8(), p, static_cast<SveF64>(v));
  }
}
template <class T> inline typename Simd<T>::V load_tail(const T* p, int n) { return svld1(first_lanes(n, T{}), p); }
template <class T> inline void store_tail(T* p, typename Simd<T>::V v, int n) {
  if constexpr (sizeof(T) == 4) {
    svst1(first_lanes(n, T{}), p, static_cast<SveF32>(v));
  } else {
    svst1(first_lanes(n, T{}), p, static_cast<SveF64>(v));
  }
}

// Not svmla: GCC 12 keeps a second copy of every accumulator beside the loop of a product, 16 moves for 16
// multiply-adds.
inline F32 fma(F32 a, F32 b, F32 c) {
  asm("fmla %0.s, %1/m, %2.s, %3.s" : "+w"(c) : "Upl"(svptrue_b8()), "w"(a), "w"(b));
  return c;
}
inline F64 fma(F64 a, F64 b, F64 c) {
  asm("fmla %0.d, %1/m, %2.d, %3.d" : "+w"(c) : "Upl"(svptrue_b8()), "w"(a), "w"(b));
  return c;
}

/// Predicates do not move to general registers: the lanes that hold leave their bits, and one instruction joins them.
inline std::uint32_t sign_bits(I32 lanes) {
  const SveU32 lane_bit = svlsl_x(svptrue_b8(), svdup_u32(1), svindex_u32(0, 1));
  return svorv(svcmplt(svptrue_b8(), static_cast<SveI32>(lanes), 0), lane_bit);
}
inline std::uint32_t sign_bits(I64 lanes) {
  const SveU64 lane_bit = svlsl_x(svptrue_b8(), svdup_u64(1), svindex_u64(0, 1));
  return static_cast<std::uint32_t>(svorv(svcmplt(svptrue_b8(), static_cast<SveI64>(lanes), 0), lane_bit));
}

inline void multiply_wide(U32 a, std::uint32_t m, U32& low, U32& high) {
  low = a * m;
  high = svmulh_x(svptrue_b8(), static_cast<SveU32>(a), m);
}

}  // namespace
}  // namespace qkv
