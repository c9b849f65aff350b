// Widening loads and rounding stores of one instruction set against the conversions of qkv/types.h, which tests/core
// checks against the definition of the formats: every pattern, every midpoint and its neighbours, random floats, tails.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "simd/this_isa.h"
#include "simd/widen.h"

namespace qkv {
namespace {

template <class S> class HalfVectors : public OnThisIsa {};
using HalfTypes = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfVectors, HalfTypes);

template <class S> void expect_narrowed(const std::vector<float>& values) {
  std::vector<S> narrowed(values.size());
  narrow_rows(values.data(), 1, static_cast<Index>(values.size()), narrowed.data(), 0);
  for (std::size_t n = 0; n < values.size(); ++n) {
    ASSERT_EQ(narrowed[n].bits, S(values[n]).bits) << values[n] << " = " << std::bit_cast<std::uint32_t>(values[n]);
  }
}

TYPED_TEST(HalfVectors, WidenEveryPattern) {
  std::vector<TypeParam> patterns(65536);
  for (std::size_t n = 0; n < patterns.size(); ++n)
    patterns[n] = std::bit_cast<TypeParam>(static_cast<std::uint16_t>(n));
  std::vector<float> wide(patterns.size());
  widen_rows(patterns.data(), 256, 256, 256, wide.data());
  for (std::size_t n = 0; n < patterns.size(); ++n) {
    const auto expected = static_cast<float>(patterns[n]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide[n])) << n;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[n]), std::bit_cast<std::uint32_t>(expected)) << n;
    }
  }
}

TYPED_TEST(HalfVectors, NarrowEveryMidpointAndItsNeighbours) {
  std::vector<float> values;
  for (std::uint32_t n = 0; n < 65536; ++n) {
    const auto low = static_cast<float>(std::bit_cast<TypeParam>(static_cast<std::uint16_t>(n)));
    const auto high = static_cast<float>(std::bit_cast<TypeParam>(static_cast<std::uint16_t>(n ^ 1U)));
    const float middle = low / 2 + high / 2;
    for (const float x : {low, middle, std::nextafter(middle, -HUGE_VALF), std::nextafter(middle, HUGE_VALF)})
      values.push_back(x);
  }
  expect_narrowed<TypeParam>(values);
}

TYPED_TEST(HalfVectors, NarrowAnyFloat) {
  std::mt19937 random(11);
  std::vector<float> values(1'000'000);
  for (float& x : values) x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  expect_narrowed<TypeParam>(values);
}

TYPED_TEST(HalfVectors, TailsTouchNothingElse) {
  for (Index columns = 1; columns <= 40; ++columns) {
    std::vector<TypeParam> source(static_cast<std::size_t>(3 * (columns + 2)));
    for (std::size_t n = 0; n < source.size(); ++n) source[n] = TypeParam(static_cast<float>(n));
    std::vector<float> wide(static_cast<std::size_t>(3 * columns + 1), -1.0F);
    widen_rows(source.data(), columns + 2, 3, columns, wide.data());
    EXPECT_EQ(wide.back(), -1.0F);
    std::vector<TypeParam> back(source.size(), TypeParam(-2.0F));
    narrow_rows(wide.data(), 3, columns, back.data(), columns + 2);
    for (Index r = 0; r < 3; ++r) {
      for (Index c = 0; c < columns + 2; ++c) {
        const auto n = static_cast<std::size_t>(r * (columns + 2) + c);
        EXPECT_EQ(static_cast<float>(back[n]), c < columns ? static_cast<float>(source[n]) : -2.0F);
      }
    }
  }
}

}  // namespace
}  // namespace qkv
