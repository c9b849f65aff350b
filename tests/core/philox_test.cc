// Philox against the vectors that its authors publish with Random123, Random's distributions. Dropout's rule:
// attention/dropout_test.cc.
#include "core/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "core/random.h"
#include "qkv/attention.h"
#include "support/errors.h"

namespace {

using qkv::PhiloxWords;
using qkv::Random;

// kat_vectors of Random123 1.14, philox4x32-10.
TEST(Philox, GivesThePublishedWords) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(qkv::philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(qkv::philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
      (PhiloxWords{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(qkv::philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
      (PhiloxWords{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(DropoutThreshold, RoundsToNearest) {
  EXPECT_EQ(qkv::dropout_threshold(0, "f"), 0U);
  EXPECT_EQ(qkv::dropout_threshold(1, "f"), 65536U);
  EXPECT_EQ(qkv::dropout_threshold(0.1, "f"), static_cast<std::uint32_t>(std::lround(0.1 * 65536)));
  EXPECT_EQ(qkv::dropout_threshold(0x1p-17, "f"), 1U);
  EXPECT_EQ(qkv::dropout_scale(65536), 0.0);
  EXPECT_EQ(qkv::dropout_scale(32768), 2.0);
}

TEST(DropoutThreshold, RefusesWhatCanNotBe) {
  for (const double p : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN(), 0x1p-18}) {
    EXPECT_THROW(qkv::dropout_threshold(p, "f"), qkv::OptionError) << p;
  }
  EXPECT_EQ(qkv::test::text_of<qkv::OptionError>([] { qkv::dropout_threshold(1.5, "attention_forward"); }),
      "[attention_forward] dropout p must be in [0, 1]: got 1.5");
}

TEST(DropoutFactors, EndsOfTheRange) {
  qkv::Tensor<float> factors({1, 1, 2, 9});
  const auto all_are = [&](float value) {
    for (const float factor : factors.span()) {
      if (factor != value) return false;
    }
    return true;
  };
  qkv::dropout_factors({.p = 1, .seed = 1, .training = true}, factors);
  EXPECT_TRUE(all_are(0));
  qkv::dropout_factors({.p = 0, .seed = 1, .training = true}, factors);
  EXPECT_TRUE(all_are(1));
  qkv::dropout_factors({.p = 1, .seed = 1, .training = false}, factors);
  EXPECT_TRUE(all_are(1));
}

TEST(Random, IsPhiloxWithARunningCounter) {
  Random random(0x1122334455667788, 9);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (const std::uint32_t word : qkv::philox4x32({block, 0, 9, 1}, {0x55667788, 0x11223344})) {
      ASSERT_EQ(random.next_u32(), word);
    }
  }
}

TEST(Random, StreamsAndSeedsDiffer) {
  EXPECT_NE(Random(1, 0).next_u64(), Random(1, 1).next_u64());
  EXPECT_NE(Random(1, 0).next_u64(), Random(2, 0).next_u64());
}

// Our own logarithm, sine and cosine against the library's, whose error is within 1 ulp.
TEST(Random, OwnFunctionsAreAccurate) {
  Random random(3);
  double worst_log = 0, worst_circle = 0;
  const auto note = [](double& worst, double error) {
    if (!(error <= worst)) worst = error;  // NaN too
  };
  for (int n = 0; n < 100000; ++n) {
    const double u = random.uniform();
    const double x = 1 - u;
    note(worst_log, std::abs(Random::log_of(x) - std::log(x)) / std::max(std::abs(std::log(x)), 1e-3));
    const auto [sine, cosine] = Random::sine_cosine_of_turns(u);
    note(worst_circle, std::abs(sine - std::sin(2 * std::numbers::pi * u)));
    note(worst_circle, std::abs(cosine - std::cos(2 * std::numbers::pi * u)));
  }
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  EXPECT_LT(worst_log, 8 * kEpsilon);
  EXPECT_LT(worst_circle, 8 * kEpsilon);  // 2 pi u itself is rounded by up to 4 epsilon
}

// Means and variances of n draws, each within 6 standard deviations of the estimator.
TEST(Random, MomentsAreRight) {
  Random random(11);
  constexpr int kDraws = 200000;
  double uniform_sum = 0, normal_sum = 0, normal_squares = 0, low = 1, high = 0;
  for (int n = 0; n < kDraws; ++n) {
    const float u = random.uniform_f32();
    low = std::min<double>(low, u);
    high = std::max<double>(high, u);
    uniform_sum += u;
    const double z = random.normal();
    normal_sum += z;
    normal_squares += z * z;
  }
  EXPECT_GE(low, 0);
  EXPECT_LT(high, 1);
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 6 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(normal_sum / kDraws, 0, 6 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(normal_squares / kDraws, 1, 6 * std::sqrt(2.0 / kDraws));
}

TEST(Random, BelowIsUniformAndInRange) {
  Random random(5);
  constexpr int kDraws = 70000;
  std::array<int, 7> counts{};
  for (int n = 0; n < kDraws; ++n) ++counts.at(random.below(7));
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 7, 6 * std::sqrt(kDraws / 7.0));
  EXPECT_EQ(random.below(1), 0U);
  // For n = 3 * 2^62 a plain remainder would give the lowest third twice as often as the others.
  constexpr std::uint64_t kWide = std::uint64_t{3} << 62;
  int lowest_third = 0;
  for (int n = 0; n < kDraws; ++n) lowest_third += random.below(kWide) < kWide / 3 ? 1 : 0;
  EXPECT_NEAR(lowest_third, kDraws / 3, 6 * std::sqrt(kDraws * 2.0 / 9));
}

}  // namespace
