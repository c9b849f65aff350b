// 2^y and tanh(x) for vectors, by range reduction and a minimax polynomial (Remez, relative error, constant term 1).
// 2^0 is exactly 1, which makes a row with one live key exact. Largest errors, swept by tests/simd: 2^y 2 ulp (1.4
// measured), tanh 8 ulp (7.2 measured; its argument is rounded once more).
#pragma once

#include "simd/vec.h"

namespace qkv {
namespace {

// 2^r = 1 + r q(r), |r| <= 1/2; q below, highest power first.
template <class T> struct Exp2Poly;
template <> struct Exp2Poly<float> {  // degree 6: 2.6e-9
  static constexpr float kQ[] = {0.00015594678f, 0.0013406644f, 0.0096176929f, 0.055503106f, 0.24022653f, 0.69314721f};
  static constexpr float kBias = 127.0f;
  // 1.5 * 2^23 rounds to an integer; + bias leaves the exponent field
  static constexpr float kMagic = 12582912.0f + kBias;
  static constexpr float kLowest = -127.0f;
  static constexpr int kMantissaBits = 23;
};
template <> struct Exp2Poly<double> {  // degree 11: 1.8e-17
  static constexpr double kQ[] = {4.0780626994662248942e-10, 7.0725704424676813448e-9, 1.0180647722118852051e-7,
      1.3215442675182757836e-6, 1.5252727385038237105e-5, 1.5403530441572359301e-4, 1.33335581534401334e-3,
      9.6181291076070022538e-3, 5.5504108664790393801e-2, 2.4022650695910098007e-1, 6.9314718055994569676e-1};
  static constexpr double kBias = 1023.0;
  static constexpr double kMagic = 6755399441055744.0 + kBias;
  static constexpr double kLowest = -1023.0;
  static constexpr int kMantissaBits = 52;
};

/// y = n + r with n whole; power = 2^n, tail = r q(r) = 2^r - 1. Returns y + magic, which has n in its low bits. For y
/// whose nearest integer is an exponent of the type, or the one below, which gives 0.
template <class T> inline typename Simd<T>::V split_in_range(
    typename Simd<T>::V y, typename Simd<T>::V& power, typename Simd<T>::V& tail) {
  using P = Exp2Poly<T>;
  using V = typename Simd<T>::V;
  using U = typename Simd<T>::U;
  const V shifted = y + P::kMagic;
  const V r = y - (shifted - P::kMagic);
  V q = splat<T>(P::kQ[0]);
#pragma GCC unroll 16
  for (std::size_t k = 1; k < sizeof(P::kQ) / sizeof(T); ++k) q = fma(q, r, splat<T>(P::kQ[k]));
  tail = q * r;
  power = reinterpret_cast<V>(reinterpret_cast<U>(shifted) << P::kMantissaBits);
  return shifted;
}

/// The same for any y that is not too large: below the lower end of the exponents power is 0.
template <class T>
inline void split_exp2(typename Simd<T>::V y, typename Simd<T>::V& power, typename Simd<T>::V& tail) {
  split_in_range<T>(
      max_or_second(splat<T>(Exp2Poly<T>::kLowest), y), power, tail);  // -inf becomes the lower end; NaN stays
}

template <class T> inline typename Simd<T>::V exp2(typename Simd<T>::V y) {
  typename Simd<T>::V power, tail;
  split_exp2<T>(y, power, tail);
  return fma(power, tail, power);
}

/// 2^y for y whose nearest integer is in [-127, 128], without clamping. Elsewhere, NaN and infinity included, the
/// result is undefined and `outside` gets bits that exponents_outside detects; OR them together over several calls.
template <class T> inline typename Simd<T>::V exp2_in_range(typename Simd<T>::V y, typename Simd<T>::U& outside) {
  using P = Exp2Poly<T>;
  using U = typename Simd<T>::U;
  typename Simd<T>::V power, tail;
  const typename Simd<T>::V shifted = split_in_range<T>(y, power, tail);
  outside = reinterpret_cast<U>(shifted) ^ reinterpret_cast<U>(splat<T>(P::kMagic - P::kBias));
  return fma(power, tail, power);
}

/// The lanes that were out of range at least once.
template <class T> inline std::uint32_t exponents_outside(typename Simd<T>::U outside) {
  using Int = typename Simd<T>::Int;
  constexpr Int field = (Int{1} << (8 * sizeof(T) - 1 - Exp2Poly<T>::kMantissaBits)) - 1;
  return bits_where<T>((reinterpret_cast<typename Simd<T>::I>(outside) & ~field) != 0);
}

/// tanh(x) = em / (em + 2), em = e^(2x) - 1 without cancellation near 0.
template <class T> inline typename Simd<T>::V tanh(typename Simd<T>::V x) {
  using V = typename Simd<T>::V;
  constexpr T limit = sizeof(T) == 4 ? T{40} : T{80};  // in powers of two; tanh is 1 to the last bit beyond
  V y = x * static_cast<T>(2.88539008177792681472);    // 2 log2(e)
  y = y > limit ? splat<T>(limit) : y;
  y = y < -limit ? splat<T>(-limit) : y;
  V power, tail;
  split_exp2<T>(y, power, tail);
  const V em = fma(power, tail, power - T{1});
  return em / (em + T{2});
}

}  // namespace
}  // namespace qkv
