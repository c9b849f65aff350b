// Floats through each float form of 2^y: the errors that simd/exp2.h states. The reference is the double form, whose
// own error is sampled against long double here and is 2^-28 of a float's ulp. All floats (QKV_TEST_CASES=all) take ten
// seconds on one core with wide vectors and a minute with 16-byte vectors; otherwise every 61st is tested, in builds
// with assertions and for another architecture, which run in an emulator, every 997th.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "simd/exp2.h"
#include "simd/this_isa.h"
#include "support/part.h"

namespace qkv {
namespace {

#if defined(NDEBUG) && !defined(QKV_EMULATED)
const std::uint32_t kStep = test::all_cases() ? 1 : 61;
#else
constexpr std::uint32_t kStep = 997;
#endif

class Exp2Sweep : public OnThisIsa {};

/// The largest error of function(y), in ulps of 2^y, over the floats with bits begin, begin + kStep, ... below end.
template <class Function> double largest_error(std::uint32_t begin, std::uint32_t end, const Function& function) {
  using Wide = Simd<double>::V;
  constexpr std::uint32_t n = Simd<float>::kLanes, wide_lanes = Simd<double>::kLanes;
  Wide worst{};
  for (std::uint64_t first = begin; first < end; first += std::uint64_t{n} * kStep) {
    float y[n], power[n];
    double wide_y[n], wide_power[n];
    for (std::uint32_t lane = 0; lane < n; ++lane) {
      const std::uint64_t bits = first + std::uint64_t{lane} * kStep;
      y[lane] = std::bit_cast<float>(static_cast<std::uint32_t>(std::min<std::uint64_t>(bits, end - 1)));
    }
    store<float>(power, function(load<float>(y)));
    for (std::uint32_t lane = 0; lane < n; ++lane) wide_y[lane] = y[lane], wide_power[lane] = power[lane];
    for (std::uint32_t lane = 0; lane < n; lane += wide_lanes) {
      const Wide exact = exp2<double>(load<double>(wide_y + lane));
      const Wide exponent = reinterpret_cast<Wide>(reinterpret_cast<U64>(exact) & 0x7FF0000000000000U);  // 2^floor(y)
      Wide error = (load<double>(wide_power + lane) - exact) / exponent;
      error = error < 0 ? -error : error;
      worst = error > worst ? error : worst;
      for (std::uint32_t i = 0; i < wide_lanes; ++i) {
        if (std::isnan(error[i])) return std::numeric_limits<double>::infinity();
      }
    }
  }
  double largest = 0;
  for (std::uint32_t i = 0; i < wide_lanes; ++i) largest = std::max(largest, static_cast<double>(worst[i]));
  return std::ldexp(largest, 23);
}

/// The same on all cores.
template <class Function> double largest_error_of_all(float begin, float end, const Function& function) {
  const std::uint64_t first = std::bit_cast<std::uint32_t>(begin), last = std::bit_cast<std::uint32_t>(end);
  const std::uint64_t parts = std::max(1U, std::thread::hardware_concurrency());
  std::vector<double> errors(parts);
  std::vector<std::thread> threads;
  for (std::uint64_t part = 0; part < parts; ++part) {
    threads.emplace_back([&, part] {
      errors[part] = largest_error(static_cast<std::uint32_t>(first + (last - first) * part / parts),
          static_cast<std::uint32_t>(first + (last - first) * (part + 1) / parts), function);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(errors.begin(), errors.end());
}

TEST_F(Exp2Sweep, FloatsAreWithinTwoUlps) {
  const auto clamped = [](F32 y) { return exp2<float>(y); };
  const auto in_range = [](F32 y) {
    Simd<float>::U outside{};
    const F32 power = exp2_in_range<float>(y, outside);
    return exponents_outside<float>(outside) == 0 ? power : splat<float>(std::numeric_limits<float>::quiet_NaN());
  };
  const auto sweep = [](const char* name, const auto& function) {
    // -0 to -126: all y whose result is a normal number; 0 to 1: what rounding may leave above 0.
    const double below = largest_error_of_all(-0.0F, -126.0F, function),
                 above = largest_error_of_all(0.0F, 1.0F, function);
    std::printf("2^y, %s: %.4f ulp below 0, %.4f above\n", name, below, above);
    EXPECT_LE(below, 2.0) << name;
    EXPECT_LE(above, 2.0) << name;
  };
  sweep("exp2", clamped);
  sweep("exp2_in_range", in_range);
}

TEST_F(Exp2Sweep, BelowTheNormalNumbersIsNothingLarger) {
  const float smallest = std::numeric_limits<float>::min();
  const std::uint32_t end = std::bit_cast<std::uint32_t>(-std::numeric_limits<float>::infinity());
  for (std::uint64_t bits = std::bit_cast<std::uint32_t>(std::nextafter(-126.0F, -200.0F)); bits <= end;
       bits += kStep) {
    const float y = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const float power = exp2<float>(splat<float>(y))[0];
    ASSERT_TRUE(power >= 0 && power <= smallest && (y > -127 || power == 0)) << y << " gives " << power;
    if (y < -200) bits += 4096;  // clamped: all have the same result
  }
}

TEST_F(Exp2Sweep, DoublesAreWithinTwoUlps) {
  std::mt19937_64 generator(1);
  std::uniform_real_distribution<double> wide(-1022, 1), narrow(-1, 1);
  double worst = 0;
  for (int round = 0; round < 2'000'000; ++round) {
    const double y = round % 2 == 0 ? wide(generator) : std::ldexp(narrow(generator), -(round / 2 % 60));
    const long double exact = std::exp2(static_cast<long double>(y));
    const double power = exp2<double>(splat<double>(y))[0];
    const long double ulp = std::ldexp(1.0L, std::ilogb(exact) - 52);
    const double error = static_cast<double>(std::abs(static_cast<long double>(power) - exact) / ulp);
    if (!(error <= worst)) worst = error;  // NaN too
  }
  std::printf("2^y in double, sampled: %.4f ulp\n", worst);
  EXPECT_LE(worst, 2.0);
}

}  // namespace
}  // namespace qkv
