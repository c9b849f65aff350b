// vec.h's operations in NEON, which every AArch64 CPU has. The maximum stays a comparison and a choice: fmax keeps a NaN of
// either side, fmaxnm of none.
#pragma once

#include <arm_neon.h>

#include "simd/vec_portable.h"

namespace qkv {
namespace {

using portable::load;
using portable::load_tail;
using portable::max_or_second;
using portable::select_bits;
using portable::splat;
using portable::store;
using portable::store_tail;

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

}  // namespace
}  // namespace qkv
