// Vectors of float and double, one width per instruction set: load, store, tail, fma, max, select by bit mask.
// Built on the compilers' vector extensions; an intrinsic stands only where the extension has no word or a slow one.
// Not: run-time choice of an instruction set (dispatch/). Everything is in an anonymous namespace, so that no two
// instruction sets can share a copy at link time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define QKV_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define QKV_VECTOR_BYTES 32
#else
#define QKV_VECTOR_BYTES 16
#endif

namespace qkv {
namespace {

using Index = std::int64_t;

typedef float F32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef double F64 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::int32_t I32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::int64_t I64 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::uint32_t U32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::uint64_t U64 __attribute__((vector_size(QKV_VECTOR_BYTES)));

/// The vector type of an element type, its integer twin of equal width, and the number of lanes.
template <class T>
struct Simd;
template <>
struct Simd<float> {
  using V = F32;
  using I = I32;
  using U = U32;
  using Int = std::int32_t;
  static constexpr int kLanes = QKV_VECTOR_BYTES / 4;
};
template <>
struct Simd<double> {
  using V = F64;
  using I = I64;
  using U = U64;
  using Int = std::int64_t;
  static constexpr int kLanes = QKV_VECTOR_BYTES / 8;
};

template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();

template <class T>
inline typename Simd<T>::V splat(T x) {
  return x - typename Simd<T>::V{};  // x - 0 is x for every x, -0 and NaN included
}

template <class T>
inline typename Simd<T>::V load(const T* p) {
  typename Simd<T>::V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
inline void store(T* p, typename Simd<T>::V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

/// Lanes 0 .. n-1 from memory, 0 in the others; memory past n is not touched.
template <class T>
inline typename Simd<T>::V load_tail(const T* p, int n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
  } else {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1u), p);
  }
#else
  typename Simd<T>::V v{};
  for (int lane = 0; lane < n; ++lane) v[lane] = p[lane];
  return v;
#endif
}

template <class T>
inline void store_tail(T* p, typename Simd<T>::V v, int n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1u), v);
  }
#else
  for (int lane = 0; lane < n; ++lane) p[lane] = v[lane];
#endif
}

/// a * b + c, fused where the instruction set can.
inline F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
inline F64 fma(F64 a, F64 b, F64 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

/// The larger; where either is NaN, b. So a NaN in `a` is dropped and one in `b` stays.
inline F32 max_or_second(F32 a, F32 b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
inline F64 max_or_second(F64 a, F64 b) {
#if defined(__AVX512F__)
  return _mm512_max_pd(a, b);
#elif defined(__AVX2__)
  return _mm256_max_pd(a, b);
#else
  return a > b ? a : b;
#endif
}

/// Lane i of `yes` where bit i is set, of `no` elsewhere.
template <class V>
inline V select_bits(std::uint32_t bits, V yes, V no) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<V, F32>) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), no, yes);
  } else {
    return _mm512_mask_blend_pd(static_cast<__mmask8>(bits), no, yes);
  }
#else
  using T = std::remove_cvref_t<decltype(yes[0])>;
  typename Simd<T>::I lane_bit{};
  for (int lane = 0; lane < Simd<T>::kLanes; ++lane) lane_bit[lane] = typename Simd<T>::Int{1} << lane;
  return (lane_bit & static_cast<typename Simd<T>::Int>(bits)) != 0 ? yes : no;
#endif
}

inline std::uint32_t sign_bits(I32 lanes) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(lanes));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(lanes)));
#elif defined(__SSE2__)
  return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(lanes)));
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < Simd<float>::kLanes; ++lane) bits |= (lanes[lane] < 0 ? 1u : 0u) << lane;
  return bits;
#endif
}
inline std::uint32_t sign_bits(I64 lanes) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(lanes));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_pd(reinterpret_cast<__m256d>(lanes)));
#elif defined(__SSE2__)
  return static_cast<std::uint32_t>(_mm_movemask_pd(reinterpret_cast<__m128d>(lanes)));
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < Simd<double>::kLanes; ++lane) bits |= (lanes[lane] < 0 ? 1u : 0u) << lane;
  return bits;
#endif
}

/// Bit i set where lane i of a comparison of vectors of T holds. Compilers differ in the type that a comparison has.
template <class T, class Comparison>
inline std::uint32_t bits_where(Comparison comparison) {
  return sign_bits(reinterpret_cast<typename Simd<T>::I>(comparison));
}

template <class A>
inline A smaller(A a, A b) {
  return b < a ? b : a;
}
template <class A>
inline A larger(A a, A b) {
  return a < b ? b : a;
}

}  // namespace
}  // namespace qkv
