// vec.h's operations in NEON, which every AArch64 CPU has. The maximum stays a comparison and a choice: fmax keeps a
// NaN of either side, fmaxnm of none.
#pragma once

#include <arm_neon.h>

#include "simd/vec_portable.h"

namespace qkv {
namespace {

using portable::load;
using portable::max_or_second;
using portable::select_bits;
using portable::splat;
using portable::store;

// Loops over lanes would become calls of memcpy.
template <class T> inline typename Simd<T>::V load_tail(const T* p, int n) {
  if (n >= Simd<T>::kLanes) return load<T>(p);
  if constexpr (sizeof(T) == 4) {
    float32x2_t low = {n > 0 ? p[0] : 0.0f, 0.0f}, high = {};
    if (n >= 2) low = vld1_f32(p);
    if (n == 3) high = float32x2_t{p[2], 0.0f};
    return vcombine_f32(low, high);
  } else {
    return F64{n > 0 ? p[0] : 0.0, 0.0};
  }
}
template <class T> inline void store_tail(T* p, typename Simd<T>::V v, int n) {
  if (n >= Simd<T>::kLanes) return store<T>(p, v);
  if constexpr (sizeof(T) == 4) {
    if (n >= 2) vst1_f32(p, vget_low_f32(v));
    if (n == 3) p[2] = v[2];
  }
  if (n == 1) p[0] = v[0];
}

inline F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
inline F64 fma(F64 a, F64 b, F64 c) { return vfmaq_f64(c, a, b); }

/// NEON has no movemask: each lane leaves its bit, and one instruction adds them up.
inline std::uint32_t sign_bits(I32 lanes) {
  const U32 lane_bit = {1, 2, 4, 8};
  return vaddvq_u32(reinterpret_cast<uint32x4_t>(lanes < 0) & reinterpret_cast<uint32x4_t>(lane_bit));
}
inline std::uint32_t sign_bits(I64 lanes) {
  const U64 lane_bit = {1, 2};
  return static_cast<std::uint32_t>(
      vaddvq_u64(reinterpret_cast<uint64x2_t>(lanes < 0) & reinterpret_cast<uint64x2_t>(lane_bit)));
}

inline void multiply_wide(U32 a, std::uint32_t m, U32& low, U32& high) {
  const uint32x4_t lanes = reinterpret_cast<uint32x4_t>(a);
  low = a * m;
  const uint64x2_t first = vmull_n_u32(vget_low_u32(lanes), m), last = vmull_high_n_u32(lanes, m);
  high = reinterpret_cast<U32>(vuzp2q_u32(reinterpret_cast<uint32x4_t>(first), reinterpret_cast<uint32x4_t>(last)));
}

}  // namespace
}  // namespace qkv
