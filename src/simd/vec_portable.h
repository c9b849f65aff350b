// vec.h's operations in the compilers' vector extensions: correct everywhere, fast where the compiler finds the
// instruction. The instruction sets' own files use them where they have nothing better.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "simd/lanes.h"

namespace qkv {
namespace {
namespace portable {

template <class T> inline typename Simd<T>::V splat(T x) {
  return x - typename Simd<T>::V{};  // x - 0 is x for every x, -0 and NaN included
}

template <class T> inline typename Simd<T>::V load(const T* p) {
  typename Simd<T>::V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T> inline void store(T* p, typename Simd<T>::V v) { __builtin_memcpy(p, &v, sizeof v); }

template <class T> inline typename Simd<T>::V load_tail(const T* p, int n) {
  typename Simd<T>::V v{};
  for (int lane = 0; lane < n; ++lane) v[lane] = p[lane];
  return v;
}

template <class T> inline void store_tail(T* p, typename Simd<T>::V v, int n) {
  for (int lane = 0; lane < n; ++lane) p[lane] = v[lane];
}

#if defined(QKV_FUSED)
template <class V> inline V fma_by_lane(V a, V b, V c) {
  for (std::size_t lane = 0; lane < sizeof c / sizeof c[0]; ++lane) {
    if constexpr (sizeof c[0] == 4) {
      c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    } else {
      c[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
    }
  }
  return c;
}
inline F64 fma(F64 a, F64 b, F64 c) { return fma_by_lane(a, b, c); }
#if defined(__FP_FAST_FMAF)
inline F32 fma(F32 a, F32 b, F32 c) { return fma_by_lane(a, b, c); }
#else
/// Of numbers that are floats: the exact sum rounded to odd, which rounds to a float as the exact sum does (Boldo and
/// Melquiond 2008). The product is exact; `lost` is what the sum's rounding took (Knuth's two-sum).
inline F64 fma_to_odd(F64 a, F64 b, F64 c) {
  const F64 product = a * b, sum = product + c, added = sum - product;
  const F64 lost = (product - (sum - added)) + (c - added);
  const I64 bits = reinterpret_cast<I64>(sum), is_even = (bits & 1) - 1;
  const I64 inexact = (lost < 0.0) | (lost > 0.0), inwards = (lost < 0.0) ^ (sum < 0.0);
  return reinterpret_cast<F64>(bits + (inexact & is_even & (inwards | 1)));
}
#if defined(__SSE2__)
inline F64 upper_half(F32 x) { return _mm_cvtps_pd(_mm_movehl_ps(x, x)); }
inline F32 joined(F64 lower, F64 upper) { return _mm_movelh_ps(_mm_cvtpd_ps(lower), _mm_cvtpd_ps(upper)); }
[[gnu::noinline]] F32 fma_exactly(F32 a, F32 b, F32 c) {
  return joined(fma_to_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c)),
      fma_to_odd(upper_half(a), upper_half(b), upper_half(c)));
}
/// The rounded double rounds to the right float unless it lies halfway between two floats, whose last 29 bits are then
/// 1 and zeros, or where floats are denormal.
[[gnu::noinline, maybe_unused]] F32 fma(F32 a, F32 b, F32 c) {
  const F64 lower = _mm_cvtps_pd(a) * _mm_cvtps_pd(b) + _mm_cvtps_pd(c);
  const F64 upper = upper_half(a) * upper_half(b) + upper_half(c);
  const F32 last = _mm_shuffle_ps(_mm_castpd_ps(lower), _mm_castpd_ps(upper), 0x88);
  const F32 first = _mm_shuffle_ps(_mm_castpd_ps(lower), _mm_castpd_ps(upper), 0xDD);
  const I32 size = (reinterpret_cast<I32>(first) & 0x7FFFFFFF) - 1;  // -1 of zero
  const I32 halfway = (reinterpret_cast<I32>(last) & 0x1FFFFFFF) == 0x10000000,
            small = (size >= 0) & (size < 0x38100000);
  if (_mm_movemask_ps(reinterpret_cast<F32>(halfway | small)) != 0) return fma_exactly(a, b, c);
  return joined(lower, upper);
}
#else
[[gnu::noinline, maybe_unused]] F32 fma(F32 a, F32 b, F32 c) {
  typedef float Half __attribute__((vector_size(QKV_VECTOR_BYTES / 2)));
  const auto half = [&](auto first, auto second) {
    const auto widened = [](F32 x) {
      return __builtin_convertvector(
          __builtin_shufflevector(x, x, decltype(first)::value, decltype(second)::value), F64);
    };
    return __builtin_convertvector(fma_to_odd(widened(a), widened(b), widened(c)), Half);
  };
  const Half lower = half(std::integral_constant<int, 0>(), std::integral_constant<int, 1>());
  const Half upper = half(std::integral_constant<int, 2>(), std::integral_constant<int, 3>());
  return __builtin_shufflevector(lower, upper, 0, 1, 2, 3);
}
#endif
#endif
#else
inline F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
inline F64 fma(F64 a, F64 b, F64 c) { return a * b + c; }
#endif

inline F32 max_or_second(F32 a, F32 b) { return a > b ? a : b; }
inline F64 max_or_second(F64 a, F64 b) { return a > b ? a : b; }

template <class V> inline V select_bits(std::uint32_t bits, V yes, V no) {
  using T = std::remove_cvref_t<decltype(yes[0])>;
  typename Simd<T>::I lane_bit{};
  for (int lane = 0; lane < Simd<T>::kLanes; ++lane) lane_bit[lane] = typename Simd<T>::Int{1} << lane;
  return (lane_bit & static_cast<typename Simd<T>::Int>(bits)) != 0 ? yes : no;
}

template <class I> inline std::uint32_t sign_bits(I lanes) {
#if defined(__SSE2__)
  if constexpr (sizeof lanes != 16) {
    static_assert(sizeof lanes == 16, "wider vectors have a file of their own");
  } else if constexpr (sizeof lanes[0] == 4) {
    return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(lanes)));
  } else {
    return static_cast<std::uint32_t>(_mm_movemask_pd(reinterpret_cast<__m128d>(lanes)));
  }
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < static_cast<int>(sizeof lanes / sizeof lanes[0]); ++lane)
    bits |= (lanes[lane] < 0 ? 1u : 0u) << lane;
  return bits;
#endif
}

inline void multiply_wide(U32 a, std::uint32_t m, U32& low, U32& high) {
  const U64 pairs = reinterpret_cast<U64>(a);
  const U64 even = (pairs & 0xFFFFFFFFu) * static_cast<std::uint64_t>(m);
  const U64 odd = (pairs >> 32) * static_cast<std::uint64_t>(m);
  low = reinterpret_cast<U32>((even & 0xFFFFFFFFu) | (odd << 32));
  high = reinterpret_cast<U32>((even >> 32) | (odd & 0xFFFFFFFF00000000u));
}

}  // namespace portable
}  // namespace
}  // namespace qkv
