// The arithmetic of invariant bits in scalar code: the fused chain, 2^y, tanh, the logarithm. Every operation is one of
// IEEE 754 (docs/concepts/semantics.md, the order of every sum).
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

#include "core/maths.h"
#include "qkv/types.h"

namespace qkv::test::plain {

template <class S> inline constexpr bool kIsFloat = std::is_same_v<S, float>;
template <class S> inline constexpr S kInfinity = std::numeric_limits<S>::infinity();

/// sum_n a[n * step] * b[n * step], fused, from +0, ascending.
template <class S> S chain(const S* a, const S* b, Index count) {
  S sum = 0;
  for (Index n = 0; n < count; ++n) sum = std::fma(a[n], b[n], sum);
  return sum;
}

/// 2^r = 1 + r q(r) for |r| <= 1/2: q's coefficients, highest power first.
template <class S> constexpr auto kExp2 = [] {
  if constexpr (kIsFloat<S>) {
    return std::array{0.00015594678f, 0.0013406644f, 0.0096176929f, 0.055503106f, 0.24022653f, 0.69314721f};
  } else {
    return std::array{4.0780626994662248942e-10, 7.0725704424676813448e-9, 1.0180647722118852051e-7,
        1.3215442675182757836e-6, 1.5252727385038237105e-5, 1.5403530441572359301e-4, 1.33335581534401334e-3,
        9.6181291076070022538e-3, 5.5504108664790393801e-2, 2.4022650695910098007e-1, 6.9314718055994569676e-1};
  }
}();
template <class S> constexpr S kLowest = kIsFloat<S> ? -127 : -1023;  // 2^lowest counts as 0
template <class S> constexpr S kMagic = (kIsFloat<S> ? 12582912.0 : 6755399441055744.0) - kLowest<S>;

/// Whether the whole number nearest to y is an exponent of the type, or the one below.
template <class S> bool in_range(S y) {
  const S n = (y + kMagic<S>)-kMagic<S>;
  return n >= kLowest<S> && n <= 1 - kLowest<S>;
}

/// 2^y = power + power * tail.
template <class S> struct Power {
  S power, tail;

  explicit Power(S y) {
    using Bits = std::conditional_t<kIsFloat<S>, std::uint32_t, std::uint64_t>;
    y = y < kLowest<S> ? kLowest<S> : y;  // NaN stays
    const S shifted = y + kMagic<S>, r = y - (shifted - kMagic<S>);
    S q = kExp2<S>[0];
    for (std::size_t n = 1; n < kExp2<S>.size(); ++n) q = std::fma(q, r, kExp2<S>[n]);
    power = std::bit_cast<S>(std::bit_cast<Bits>(shifted) << (std::numeric_limits<S>::digits - 1));
    tail = q * r;
  }
};
template <class S> S exp2(S y) {
  const Power<S> p(y);
  return std::fma(p.power, p.tail, p.power);
}

template <class S> S tanh(S x) {
  constexpr S limit = kIsFloat<S> ? 40 : 80;
  S y = x * static_cast<S>(2.88539008177792681472);  // 2 log2(e)
  y = y > limit ? limit : y;
  y = y < -limit ? -limit : y;
  const Power<S> p(y);
  const S em = std::fma(p.power, p.tail, p.power - 1);
  return em / (em + 2);
}

/// log(x) for normal x > 0: x = 2^e m, m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
inline double log_positive(double x) {
  constexpr std::uint64_t one = 0x3FF0000000000000u, root_half = 0x3FE6A09E667F3BCDu;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x), biased = (bits + (one - root_half)) >> 52;
  const double m = std::bit_cast<double>(bits - ((biased << 52) - one));
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 13;
  for (const double c : {1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0}) series = std::fma(series, z, c);
  return std::fma(static_cast<double>(biased) - 1023, std::numbers::ln2, (s + s) * series);
}

/// A number and what rounding took from it.
template <class S> struct Parts {
  S high, low;
};
/// log(2^peak * sum).
template <class S> Parts<S> log_sum_exp(S peak, S sum) {
  if (sum == 0) return {-kInfinity<S>, 0};
  if (!(sum < kInfinity<S>)) return {sum, 0};
  if constexpr (kIsFloat<S>) {
    const double exact = std::fma(static_cast<double>(peak), std::numbers::ln2, log_positive(sum));
    const auto rounded = static_cast<float>(exact);
    return {rounded, static_cast<float>(exact - static_cast<double>(rounded))};
  } else {
    const maths::Wide shift = maths::product({peak, 0}, maths::kLn2), logarithm = maths::wide_log(sum);
    const maths::Wide about = maths::sum(shift.high, logarithm.high);
    const maths::Wide exact = maths::sum(about.high, about.low + (shift.low + logarithm.low));
    return {exact.high, exact.low};
  }
}

/// lse in powers of two; +infinity for an empty row. f64 without keys: one product, as a sink's.
template <class S> Parts<S> in_powers_of_two(Parts<S> lse, bool keys) {
  if (lse.high == -kInfinity<S>) return {kInfinity<S>, 0};
  maths::Wide exact{(static_cast<double>(lse.high) + static_cast<double>(lse.low)) * std::numbers::log2e, 0};
  if (!kIsFloat<S> && keys) exact = maths::product({lse.high, lse.low}, maths::kLog2e);
  const auto high = static_cast<S>(exact.high);
  return {high, std::isfinite(lse.high) ? static_cast<S>(exact.high - static_cast<double>(high) + exact.low) : S{0}};
}

/// A natural number in powers of two; the largest finite ones stay finite, infinity and NaN what they are.
template <class S> S log2_of(S natural) {
  constexpr S most = std::numeric_limits<S>::max();
  if (!std::isfinite(natural)) return natural;
  const S scaled = natural * std::numbers::log2e_v<S>;
  return scaled > most ? most : scaled < -most ? -most : scaled;
}

}  // namespace qkv::test::plain
