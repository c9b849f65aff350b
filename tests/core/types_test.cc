// 16-bit floats: every pattern against its definition (sign, exponent, fraction), and rounding against a search for the
// nearest pattern in f64, where every float and every midpoint is exact.
#include "qkv/types.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

namespace {

using qkv::BFloat16;
using qkv::Float16;

template <class T> struct Format;
template <> struct Format<BFloat16> {
  static constexpr int kExponentBits = 8, kFractionBits = 7;
};
template <> struct Format<Float16> {
  static constexpr int kExponentBits = 5, kFractionBits = 10;
};

template <class T> constexpr std::uint16_t kInfinityBits = ((1U << Format<T>::kExponentBits) - 1U)
                                                           << Format<T>::kFractionBits;

/// (-1)^sign * 2^(exponent - bias) * 1.fraction, from the definition. With `unbounded`, infinity's pattern means the
/// number that would follow the largest one.
template <class T> double defined_value(std::uint16_t bits, bool unbounded = false) {
  constexpr int fraction_bits = Format<T>::kFractionBits, exponent_bits = Format<T>::kExponentBits;
  constexpr int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = (bits >> fraction_bits) & top, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == top && !unbounded) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

/// The pattern nearest to a finite x, ties to even.
template <class T> std::uint16_t nearest_bits(float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  std::uint16_t low = 0, high = kInfinityBits<T>;  // low <= magnitude; patterns of one sign are ordered as their values
  if (magnitude >= defined_value<T>(high, true)) {
    low = high;
  } else {
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (defined_value<T>(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - defined_value<T>(low), above = defined_value<T>(high, true) - magnitude;
    if (above < below || (above == below && low % 2 == 1)) low = high;
  }
  return static_cast<std::uint16_t>(low | (std::signbit(x) ? 0x8000U : 0U));
}

template <class T> class HalfFloat : public testing::Test {};
using HalfTypes = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfFloat, HalfTypes);

TYPED_TEST(HalfFloat, IsTwoPlainBytes) {
  static_assert(std::is_trivially_copyable_v<TypeParam> && sizeof(TypeParam) == 2);
  static_assert(!std::is_convertible_v<float, TypeParam> && !std::is_convertible_v<TypeParam, float>);
  EXPECT_EQ(TypeParam{}.bits, 0);
}

TYPED_TEST(HalfFloat, EveryPatternIsWhatItsDefinitionSays) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto value = static_cast<double>(static_cast<float>(std::bit_cast<TypeParam>(bits)));
    const double expected = defined_value<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
    } else {
      ASSERT_EQ(value, expected) << pattern;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << pattern;
    }
  }
}

TYPED_TEST(HalfFloat, EveryPatternSurvivesTheWayThroughFloat) {
  constexpr std::uint32_t quiet = 1U << (Format<TypeParam>::kFractionBits - 1);
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const bool nan = (pattern & 0x7FFFU) > kInfinityBits<TypeParam>;
    ASSERT_EQ(TypeParam(static_cast<float>(std::bit_cast<TypeParam>(bits))).bits, nan ? pattern | quiet : pattern);
  }
}

TYPED_TEST(HalfFloat, MidpointsGoToEvenAndTheirNeighboursToTheNearest) {
  for (std::uint32_t pattern = 0; pattern < kInfinityBits<TypeParam>; ++pattern) {
    const auto low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
    const auto middle = static_cast<float>(
        (defined_value<TypeParam>(low) + defined_value<TypeParam>(high, true)) / 2);  // exact in float
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(TypeParam(middle).bits, even) << pattern;
    ASSERT_EQ(TypeParam(-middle).bits, even | 0x8000U) << pattern;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0F)).bits, low) << pattern;
    ASSERT_EQ(TypeParam(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, high) << pattern;
  }
}

TYPED_TEST(HalfFloat, AnyFloatGoesToTheNearest) {
  std::mt19937 random(7);
  for (int n = 0; n < 2'000'000; ++n) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(TypeParam(x).bits, nearest_bits<TypeParam>(x)) << x;
  }
}

TYPED_TEST(HalfFloat, InfinityAndNanStay) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam(inf).bits, kInfinityBits<TypeParam>);
  EXPECT_EQ(TypeParam(-inf).bits, kInfinityBits<TypeParam> | 0x8000U);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::max()).bits, kInfinityBits<TypeParam>);
  for (const std::uint32_t nan : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    const TypeParam x(std::bit_cast<float>(nan));
    EXPECT_GT(x.bits & 0x7FFFU, kInfinityBits<TypeParam>);
    EXPECT_EQ(x.bits >> 15, nan >> 31);
  }
}

}  // namespace
