// Functions of real numbers wherever they decide bits: log, e^x, 2^x, powers, sine and cosine in double. Additions,
// multiplications and divisions alone, none of them fused (-ffp-contract=off, as all of qkv), so that every C library,
// compiler and CPU gives the same bits. Each is within 1 ulp of the true value, subnormal results included, and exact
// where that is a power of two or 0; tests/core/maths_test.cc measures it. Kernels include this too: no weak symbols.
#pragma once

#include <cstdint>
#include <limits>

namespace qkv::maths {
namespace {

/// high + low: a number of about 106 bits.
struct Wide {
  double high, low;
};
struct SineCosine {
  double sine, cosine;
};

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr Wide kLn2{0x1.62E42FEFA39EFp-1, 0x1.ABC9E3B39803Fp-56},
    kLog2e{0x1.71547652B82FEp0, 0x1.777D0FFDA0D24p-56}, kThird{0x1.5555555555555p-2, 0x1.5555555555555p-56},
    kHalfPi{0x1.921FB54442D18p0, 0x1.1A62633145C07p-54};
inline constexpr double kLn2First = 0x1.62E42FEFA38p-1, kLn2Rest = 0x1.EF35793C7673p-45;  // of 42 bits, and after them
inline constexpr double kRounding = 0x1.8p52;  // added: rounds to whole numbers, and leaves them in the low bits
inline constexpr std::uint64_t kSign = std::uint64_t{1} << 63;

inline std::uint64_t bits_of(double x) { return __builtin_bit_cast(std::uint64_t, x); }
inline double of_bits(std::uint64_t bits) { return __builtin_bit_cast(double, bits); }

/// The coefficients 1/3, 1/5, ... 1/23 and 1/0!, 1/1!, ... 1/18! of Taylor's series.
struct Coefficients {
  double odd[24] = {}, factorial[19] = {1};
  constexpr Coefficients() {
    for (int n = 1; n < 24; n += 2) odd[n] = 1.0 / n;
    for (int n = 1; n < 19; ++n) factorial[n] = factorial[n - 1] / n;
  }
};
inline constexpr Coefficients kInverse;

/// x, or the limit with its sign where |x| is larger. NaN stays. No branch, so that loops vectorise.
inline double limited(double x, double limit) {
  const std::uint64_t sign = bits_of(x) & kSign;
  return of_bits(bits_of(x) ^ sign) > limit ? of_bits(bits_of(limit) | sign) : x;
}

/// a + b exactly (Knuth, The Art of Computer Programming 2, section 4.2.2).
inline Wide sum(double a, double b) {
  const double high = a + b, part = high - a;
  return {high, (a - (high - part)) + (b - part)};
}
/// a * b exactly, by halves of 26 bits (Dekker 1971).
inline Wide product(double a, double b) {
  const auto half = [](double x) { return of_bits((bits_of(x) + (1U << 26)) & ~((std::uint64_t{1} << 27) - 1)); };
  const double a1 = half(a), a2 = a - a1, b1 = half(b), b2 = b - b1, high = a * b;
  return {high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2};
}
/// Of numbers up to the largest: halves of those would round to infinity, so they are multiplied by 2^-100 meanwhile.
inline Wide product(const Wide& a, const Wide& b) {
  const bool large = of_bits(bits_of(a.high) & ~kSign) > 0x1p900;
  const double down = large ? 0x1p-100 : 1.0, up = large ? 0x1p100 : 1.0, high = a.high * down;
  const Wide whole = product(high, b.high);
  const Wide exact = sum(whole.high, whole.low + (high * b.low + a.low * down * b.high));
  return {exact.high * up, exact.low * up};
}

/// x = 2^exponent m, m in [sqrt(1/2), sqrt(2)), for finite x > 0.
struct Scaled {
  double exponent, m;
};
inline Scaled scaled(double x) {
  constexpr std::uint64_t one = 0x3FF0000000000000U, root_half = 0x3FE6A09E667F3BCDU, two_to_52 = 0x4330000000000000U;
  const bool subnormal = x < 0x1p-1022;
  const std::uint64_t bits = bits_of(x * (subnormal ? 0x1p54 : 1.0)), biased = (bits + (one - root_half)) >> 52;
  const double exponent = of_bits(biased + two_to_52) - (subnormal ? 0x1p52 + 1077 : 0x1p52 + 1023);
  return {exponent, of_bits(bits - ((biased << 52) - one))};
}
/// 1/5 + z / 7 + z^2 / 9 + ... + z^9 / 23, where log m = 2 atanh(s) = 2 s (1 + z / 3 + z^2 / 5 + ...), z = s^2 and
/// s = (m - 1) / (m + 1), so that z <= 0.0295: the first term left out is z^12 / 25.
inline double log_series(double z) {
  const double square = z * z;
  double even = kInverse.odd[21], odd = kInverse.odd[23];
#pragma GCC unroll 8
  for (int n = 17; n >= 5; n -= 4) {
    even = even * square + kInverse.odd[n];
    odd = odd * square + kInverse.odd[n + 2];
  }
  return even + odd * z;
}

/// log(x) to 2^-64 of itself, for finite x > 0.
inline Wide wide_log(double x) {
  const auto [exponent, m] = scaled(x);
  const Wide below = sum(m, 1);
  const double inverse = 1 / below.high, quotient = (m - 1) * inverse;
  const Wide back = product(quotient, below.high);
  const Wide s{quotient, (((m - 1) - back.high) - back.low - quotient * below.low) * inverse}, z = product(s, s);
  const Wide third = product(z, kThird);
  const Wide tail = product(s, sum(third.high, third.low + z.high * z.high * log_series(z.high)));
  const Wide half = sum(s.high, tail.high);
  const Wide all = sum(exponent * kLn2First, 2 * half.high);
  return sum(all.high, all.low + (exponent * kLn2Rest + 2 * (half.low + (s.low + tail.low))));
}
/// -inf at 0, NaN below. With f = m - 1 = s (2 + f) it is 2 s + 2 s t = f - s (f - 2 t).
inline double log(double x) {
  if (!(x > 0 && x < kInfinity)) return x == 0 ? -kInfinity : x < 0 ? kInfinity - kInfinity : x;
  const auto [exponent, m] = scaled(x);
  const double f = m - 1, s = f / (m + 1), z = s * s, t = z * (kInverse.odd[3] + z * log_series(z));
  return exponent * kLn2First - ((s * (f - 2 * t) - exponent * kLn2Rest) - f);
}

/// e^(high + low): 2^n e^r, |r| <= ln(2) / 2, by Taylor's series: the first term left out is r^14 / 14!.
inline double exp(double high, double low = 0) {
  const double given = high;
  high = limited(high, 800);  // beyond, the result is 0 or infinite
  low = high == given ? low : 0;
  const double rounded = high * kLog2e.high + kRounding, n = rounded - kRounding;
  const double first = high - n * kLn2First, rest = low - n * kLn2Rest, r = first + rest;
  const double square = r * r;
  double even = kInverse.factorial[12], odd = kInverse.factorial[13];
#pragma GCC unroll 8
  for (int k = 10; k >= 2; k -= 2) {
    even = even * square + kInverse.factorial[k];
    odd = odd * square + kInverse.factorial[k + 1];
  }
  const double power = 1 + (r + (square * (even + odd * r) + ((first - r) + rest)));
  // 2^n in two factors: the first product is exact, the second rounds a subnormal result once.
  const std::uint64_t biased = bits_of(rounded) - bits_of(kRounding) + 2048, half = biased / 2;
  return power * of_bits((half - 1) << 52) * of_bits((biased - half - 1) << 52);
}
inline double exp2(double x) {
  const Wide exponent = product({x, 0}, kLn2);
  return exp(x * kLn2.high, (exponent.high - x * kLn2.high) + exponent.low);
}
/// x^y for x >= 0, and y > 0 where x is 0 or infinite.
[[gnu::noinline, maybe_unused]] double pow(double x, double y) {
  const double about = log(x) * y;
  if (!(about > -800 && about < 800)) return exp(about);
  const Wide exponent = product(wide_log(x), {y, 0});
  return exp(exponent.high, exponent.low);
}

/// x minus quarters of a turn, for |x| >= 2^32 (Payne and Hanek 1983): of the words of 2 / pi the six from where
/// their products with x are below four. `quarters`: how many, in the two low bits.
[[gnu::noinline, maybe_unused]] Wide rest_of_many_turns(double x, std::uint64_t& quarters) {
  static constexpr std::uint32_t kTwoOverPi[] = {0, 0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599,
      0x3C439041, 0xFE5163AB, 0xDEBBC561, 0xB7246E3A, 0x424DD2E0, 0x06492EEA, 0x09D1921C, 0xFE1DEB1C, 0xB129A73E,
      0xE88235F5, 0x2EBB4484, 0xE99C7026, 0xB45F7E41, 0x3991D639, 0x835339F4, 0x9C845F8B, 0xBDF9283B, 0x1FF897FF,
      0xDE05980F, 0xEF2F118B, 0x5A0A6D1F, 0x6D367ECF, 0x27CB09B7, 0x4F463F66, 0x9E5FEA2D, 0x7527BAC7, 0xEBE5F17B,
      0x3D0739F7, 0x8A5292EA, 0x6BFB5FB1, 0x1F8D5D08, 0x56033046, 0xFC7B6BAB, 0xF0CFBC20, 0x9AF4361D};
  const std::uint64_t magnitude = bits_of(x) & ~kSign;
  const std::uint64_t mantissa = (magnitude & ((std::uint64_t{1} << 52) - 1)) | std::uint64_t{1} << 52;
  const std::uint64_t start = 64 + (magnitude >> 52) - 1075 - 2;  // x = mantissa 2^(start - 62)
  std::uint32_t words[6] = {};                                    // quarters of a turn 2^30, 2^62, ...
  const std::uint64_t halves[] = {mantissa >> 27, mantissa & ((1U << 27) - 1)};
  for (const std::uint64_t part : halves) {
    std::uint64_t carry = 0;
    for (std::uint64_t n = 6, bit = start + 160; n-- > 0; bit -= 32) {
      const std::uint32_t* const from = kTwoOverPi + bit / 32;
      const std::uint64_t word = ((std::uint64_t{from[0]} << 32 | from[1]) >> (32 - bit % 32)) & 0xFFFFFFFFU;
      carry += (std::uint64_t{words[n]} << 27) + part * word;
      words[n] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }
  quarters = (words[0] >> 30) + (words[0] >> 29 & 1);
  words[0] -= static_cast<std::uint32_t>(quarters << 30);
  Wide rest{static_cast<double>(static_cast<std::int32_t>(words[0])) * 0x1p-30, 0};
  double unit = 0x1p-62;
  for (int n = 1; n < 6; ++n) {
    const Wide added = sum(rest.high, words[n] * unit);
    rest = sum(added.high, added.low + rest.low);
    unit *= 0x1p-32;
  }
  rest = product(rest, kHalfPi);
  if (x > 0) return rest;
  quarters = 0 - quarters;
  return {-rest.high, -rest.low};
}

/// Sine and cosine of n quarters of a turn and a rest, |rest| <= pi / 4, by Taylor's series up to r^17 and r^18.
[[gnu::always_inline]] inline SineCosine turned(const Wide& r, std::uint64_t quarters) {
  const double z = r.high * r.high, half = z / 2;
  double of_sine = kInverse.factorial[17], of_cosine = -kInverse.factorial[18];
#pragma GCC unroll 16
  for (int n = 15, sign = -1; n >= 3; n -= 2, sign = -sign) {
    of_sine = of_sine * z + sign * kInverse.factorial[n];
    of_cosine = of_cosine * z - sign * kInverse.factorial[n + 1];
  }
  const double sine = r.high + (r.high * z * of_sine + r.low * (1 - half)), near = 1 - half;
  const double cosine = near + (((1 - near) - half) + (z * z * of_cosine - r.high * r.low));
  const std::uint64_t swapped = (0 - (quarters & 1)) & (bits_of(sine) ^ bits_of(cosine));
  return {of_bits(bits_of(sine) ^ swapped ^ (quarters & 2) << 62),
      of_bits(bits_of(cosine) ^ swapped ^ ((quarters + 1) & 2) << 62)};
}

/// Sine and cosine of x radians, |x| < 2^32, without a branch: x minus n quarters of a turn, pi / 2 in pieces of 21
/// bits, whose products with n are exact.
[[gnu::always_inline]] inline SineCosine sine_cosine_below(double x) {
  const double rounded = x * 0x1.45F306DC9C883p-1 + kRounding, n = rounded - kRounding;
  const Wide third = sum((x - n * 0x1.921FBp0) - n * 0x1.5110Ap-22, -n * 0x1.4611Ap-42);
  const Wide fourth = sum(third.high, -n * 0x1.898CCp-64);
  return turned(sum(fourth.high, fourth.low + (third.low - n * 0x1.45C06E0E68948p-86)), bits_of(rounded));
}
inline SineCosine sine_cosine(double x) {
  if (x == 0) return {x, 1};
  if (x > -0x1p32 && x < 0x1p32) return sine_cosine_below(x);
  if (!(x - x == 0)) return {x - x, x - x};
  std::uint64_t quarters = 0;
  const Wide rest = rest_of_many_turns(x, quarters);
  return turned(rest, quarters);
}

}  // namespace
}  // namespace qkv::maths
