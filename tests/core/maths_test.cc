// core/maths.h against long double: errors in ulps over the whole range of double, and what has no error.
#include "core/maths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "core/random.h"

namespace qkv {
namespace {

using Number = double (*)(Random&);

double any(Random& random) { return std::bit_cast<double>(random.next_u64()); }
double positive(Random& random) { return std::abs(any(random)); }
double subnormal(Random& random) { return std::bit_cast<double>(random.next_u64() >> 12); }
double near_zero(Random& random) { return std::ldexp(2 * random.uniform() - 1, -static_cast<int>(random.below(60))); }
double near_one(Random& random) { return 1 + near_zero(random) / 2; }
double exponent(Random& random) { return 2200 * random.uniform() - 1100; }
double angle(Random& random) { return std::ldexp(2 * random.uniform() - 1, static_cast<int>(random.below(33))); }
/// The double nearest to a whole number of quarters of a turn: what is left of it is far smaller than its ulp.
double quarters(Random& random) {
  return static_cast<double>(std::floor(std::exp(24 * random.uniform())) * 1.570796326794896619231321691639751442L);
}

/// |got - exact| in ulps of exact.
double ulps(double got, long double exact) {
  if (std::isnan(got) || std::isnan(exact)) return std::isnan(got) && std::isnan(exact) ? 0 : HUGE_VAL;
  if (std::isinf(got)) return static_cast<double>(exact) == got ? 0 : HUGE_VAL;
  const int unit = exact == 0 ? -1074 : std::max(std::ilogb(exact) - 52, -1074);
  return static_cast<double>(std::ldexp(std::abs(static_cast<long double>(got) - exact), -unit));
}

template <class Got, class Exact>
void check(const char* name, std::initializer_list<Number> arguments, const Got& got, const Exact& exact) {
  if (LDBL_MANT_DIG < 64) GTEST_SKIP() << "long double is double here";
  Random random(1);
  for (const Number argument : arguments) {
    double worst = 0, at = 0;
    for (int n = 0; n < 200000; ++n) {
      const double x = argument(random), error = ulps(got(x), exact(static_cast<long double>(x)));
      if (!(error <= worst)) worst = error, at = x;
    }
    EXPECT_LE(worst, 1) << name << '(' << std::hexfloat << at << ')';
  }
}

TEST(Maths, WithinAnUlp) {
  using Long = long double;
  check("log", {positive, subnormal, near_one}, maths::log, [](Long x) { return std::log(x); });
  check(
      "exp", {any, exponent, near_zero}, [](double x) { return maths::exp(x); }, [](Long x) { return std::exp(x); });
  check("exp2", {any, exponent, near_zero}, maths::exp2, [](Long x) { return std::exp2(x); });
  // The largest power counts on all of wide_log's second half, which is lse_low.
  for (const double power : {-0.37, 2.0 / 3, 800.0}) {
    check(
        "pow", {positive, near_one}, [=](double x) { return maths::pow(x, power); },
        [=](Long x) { return std::pow(x, static_cast<Long>(power)); });
  }
  check(
      "sine", {any, angle, quarters, near_zero}, [](double x) { return maths::sine_cosine(x).sine; },
      [](Long x) { return std::sin(x); });
  check(
      "cosine", {any, angle, quarters, near_zero}, [](double x) { return maths::sine_cosine(x).cosine; },
      [](Long x) { return std::cos(x); });
}

TEST(Maths, Corners) {
  const double infinity = HUGE_VAL, nan = infinity - infinity;
  for (int n = -1074; n < 1024; ++n) ASSERT_EQ(maths::exp2(n), std::ldexp(1.0, n));
  EXPECT_EQ(maths::log(-0.0), -infinity);
  EXPECT_EQ(maths::log(1), 0);
  EXPECT_EQ(maths::pow(0, 3), 0);
  EXPECT_EQ(maths::pow(1e300, 0), 1);
  EXPECT_EQ(maths::pow(1, 1e300), 1);
  EXPECT_EQ(maths::pow(3, 30), 205891132094649);
  EXPECT_TRUE(std::signbit(maths::sine_cosine(-0.0).sine));
  for (const double x : {infinity, -infinity, nan}) {
    EXPECT_TRUE(std::isnan(maths::sine_cosine(x).sine) && std::isnan(maths::sine_cosine(x).cosine));
    EXPECT_EQ(ulps(maths::log(x), std::log(x)), 0);
    EXPECT_EQ(ulps(maths::exp(x), std::exp(x)), 0);
    EXPECT_EQ(ulps(maths::exp2(x), std::exp2(x)), 0);
    EXPECT_EQ(ulps(maths::pow(std::abs(x), 2), std::abs(x)), 0);
  }
}

}  // namespace
}  // namespace qkv
