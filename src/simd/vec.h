// Vectors of float and double, one width per instruction set: load, store, tail, fma, max, select by bit mask. Built on
// the compilers' vector extensions; an intrinsic is used only where the extension has no expression or a slow one, each
// instruction set's in a file of its own:
//
//   splat(x)                                    x in every lane
//   load<T>(p), store<T>(p, v)                  from and to any address of a T
//   load_tail<T>(p, n), store_tail<T>(p, v, n)  lanes 0 .. n-1, 0 in the others; memory past n is not touched
//   fma(a, b, c)                                a * b + c, fused where the instruction set can or QKV_FUSED asks for it
//   max_or_second(a, b)                         the larger; where either is NaN, b: a NaN in `a` goes, one in `b` stays
//   select_bits(bits, yes, no)                  lane i of `yes` where bit i is set, of `no` elsewhere
//   sign_bits(lanes)                            bit i is the sign of integer lane i
//   multiply_wide(a, m, low, high)              halves of the 64-bit products of each 32-bit lane with m
//
// QKV_PORTABLE asks for the extensions alone: "scalar" on AArch64.
#pragma once

#include "simd/lanes.h"

#if defined(__AVX512F__)
#include "simd/vec_avx512.h"
#elif defined(__AVX2__)
#include "simd/vec_avx2.h"
#elif defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS > 0
#include "simd/vec_sve.h"
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(QKV_PORTABLE)
#include "simd/vec_neon.h"
#else
#include "simd/vec_portable.h"
namespace qkv {
namespace {
using namespace portable;  // NOLINT(google-build-using-namespace): one of the sets, as the others
}  // namespace
}  // namespace qkv
#endif

namespace qkv {
namespace {

template <class T> inline constexpr T kInf = std::numeric_limits<T>::infinity();

/// Bit i set where lane i of a comparison of vectors of T holds. Compilers differ in the type that a comparison has.
template <class T, class Comparison> inline std::uint32_t bits_where(Comparison comparison) {
  return sign_bits(reinterpret_cast<typename Simd<T>::I>(comparison));
}

template <class A> constexpr A smaller(A a, A b) { return b < a ? b : a; }
template <class A> constexpr A larger(A a, A b) { return a < b ? b : a; }
constexpr Index round_up(Index x, Index step) { return (x + step - 1) / step * step; }

/// visit(offset, lanes) for the vectors of a row of `width` numbers; the last may have fewer lanes.
template <class T, class Visit> inline void for_vectors(Index width, const Visit& visit) {
  constexpr int n = Simd<T>::kLanes;
  Index e = 0;
  for (; e + n <= width; e += n) visit(e, n);
  if (e < width) visit(e, static_cast<int>(width - e));
}
template <class T> inline typename Simd<T>::V load_lanes(const T* p, int lanes) {
  return lanes == Simd<T>::kLanes ? load<T>(p) : load_tail<T>(p, lanes);
}
template <class T> inline void store_lanes(T* p, typename Simd<T>::V v, int lanes) {
  if (lanes == Simd<T>::kLanes) {
    store<T>(p, v);
  } else {
    store_tail<T>(p, v, lanes);
  }
}

}  // namespace
}  // namespace qkv
