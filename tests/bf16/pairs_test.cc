// Products and rounding of bf16 pairs against a model in double: the library's model on any CPU with AVX-512, the
// instructions themselves where the CPU has them (another build of this file).
#include <gtest/gtest.h>

#include "bf16/pair_model.h"
#include "simd/bf16_pairs.h"
#include "simd/this_isa.h"

namespace qkv::test {
namespace {

class Bf16Pairs : public OnThisIsa {};

TEST_F(Bf16Pairs, AddUpperThenLower) {
  std::mt19937 random(5);
  for (int n = 0; n < 200'000; ++n) {
    U32 a{}, b{};
    F32 sum{};
    for (int lane = 0; lane < 16; ++lane) {
      a[lane] = random_pair(random);
      b[lane] = random_pair(random);
      sum[lane] = static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-31F;
    }
    const F32 got = add_pairs(sum, a, b);
    for (int lane = 0; lane < 16; ++lane) {
      const float upper = model_fma(sum[lane], half_of(a[lane], true), half_of(b[lane], true));
      ASSERT_EQ(got[lane], model_fma(upper, half_of(a[lane], false), half_of(b[lane], false)));
    }
  }
}

TEST_F(Bf16Pairs, DenormalsAreZero) {
  const auto once = [](float sum, std::uint32_t a, std::uint32_t b) {
    return add_pairs(F32{} + sum, U32{} + a, U32{} + b)[0];
  };
  EXPECT_EQ(once(0, 0x00010001U, 0x7F007F00U), 0) << "a denormal bf16 number times a large one";
  EXPECT_EQ(once(std::numeric_limits<float>::denorm_min(), 0, 0), 0) << "a denormal sum";
  EXPECT_EQ(once(0, 0x00803F80U, 0x3F003F80U), 1) << "2^-126 * 0.5 is lost, 1 * 1 is not";
  EXPECT_TRUE(std::isnan(once(0, 0x7FC00000U, 0))) << "NaN * 0";
  EXPECT_TRUE(std::isnan(once(0, 0x00007F80U, 0))) << "infinity * 0";
}

TEST_F(Bf16Pairs, RoundToNearestEven) {
  std::mt19937 random(9);
  for (int n = 0; n < 200'000; ++n) {
    F32 lower{}, upper{};
    for (int lane = 0; lane < 16; ++lane) {
      lower[lane] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      upper[lane] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (n % 3 == 0)
        upper[lane] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(upper[lane]) & 0xFFFF8000U);  // ties
    }
    const U32 got = round_pairs(lower, upper), ordered = round_in_order(lower, upper);
    for (int lane = 0; lane < 16; ++lane) {
      ASSERT_EQ(got[lane] & 0xFFFFU, BFloat16(flush(lower[lane])).bits) << lower[lane];
      ASSERT_EQ(got[lane] >> 16, BFloat16(flush(upper[lane])).bits) << upper[lane];
      const auto in_order = [&](int at) { return ordered[at / 2] >> (at % 2 * 16) & 0xFFFFU; };
      ASSERT_EQ(in_order(lane), got[lane] & 0xFFFFU);
      ASSERT_EQ(in_order(16 + lane), got[lane] >> 16);
    }
  }
}

}  // namespace
}  // namespace qkv::test
