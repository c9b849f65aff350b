// 1 / (1 + e^-x), and SiLU, x times it, for vectors: within 3 ulp down to 2^-126, and 0 below.
#pragma once

#include <numbers>

#include "simd/exp2.h"

namespace qkv {
namespace {

/// e^-x, and where it is too large to be that of a number whose sigmoid counts.
template <class T> struct ExpOfMinus {
  using V = typename Simd<T>::V;
  V value;
  decltype(V{} > V{}) beyond;

  explicit ExpOfMinus(V x) {
    constexpr T most = sizeof(T) == 4 ? T{126} : T{1022};
    const V y = x * -std::numbers::log2e_v<T>;
    beyond = y > most;
    value = exp2<T>(beyond ? splat<T>(most) : y);
  }
};

template <class T> inline typename Simd<T>::V silu(typename Simd<T>::V x) {
  const ExpOfMinus<T> e(x);
  return e.beyond ? typename Simd<T>::V{} : x / (e.value + T{1});
}

/// The derivative of silu, s (1 + x (1 - s)), where 1 - s = e^-x s loses no bits.
template <class T> inline typename Simd<T>::V silu_slope(typename Simd<T>::V x) {
  using V = typename Simd<T>::V;
  constexpr T most = sizeof(T) == 4 ? static_cast<T>(1e30) : static_cast<T>(1e300);  // times 1 - s, which is 0 there
  const ExpOfMinus<T> e(x);
  const V s = e.beyond ? V{} : T{1} / (e.value + T{1});
  x = x > most ? splat<T>(most) : x;
  x = x < -most ? splat<T>(-most) : x;
  return s * fma(x, e.value * s, splat<T>(1));
}

}  // namespace
}  // namespace qkv
