// The vector layer of one instruction set: 2^y at its edges (its errors: exp2_sweep_test.cc), errors of tanh by sweep,
// transposes, tails, selection by lane mask, vector Philox against the scalar one.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/philox.h"
#include "simd/exp2.h"
#include "simd/log.h"
#include "simd/philox.h"
#include "simd/this_isa.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

template <class T> class Vectors : public OnThisIsa {};
using FloatTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(Vectors, FloatTypes);
using VectorsOfFloat = Vectors<float>;

/// Largest error of function(x) over [begin, end] in ulps of the exact result, which `exact` gives in long double.
template <class T, class Function, class Exact>
double largest_ulps(T begin, T end, T step, const Function& function, const Exact& exact) {
  constexpr int n = Simd<T>::kLanes;
  double worst = 0;
  for (T x = begin; x <= end; x += step * n) {
    T in[n], out[n];
    for (int lane = 0; lane < n; ++lane) in[lane] = x + static_cast<T>(lane) * step;
    store<T>(out, function(load<T>(in)));
    for (int lane = 0; lane < n; ++lane) {
      const long double wanted = exact(static_cast<long double>(in[lane]));
      const T rounded = static_cast<T>(wanted);
      const T ulp = std::nextafter(std::abs(rounded), std::numeric_limits<T>::infinity()) - std::abs(rounded);
      const double error =
          static_cast<double>(std::abs(static_cast<long double>(out[lane]) - wanted) / static_cast<long double>(ulp));
      if (!(error <= worst)) worst = error;  // NaN too
    }
  }
  return worst;
}

#if QKV_VECTOR_BYTES > 16 || (defined(__ARM_NEON) && !defined(QKV_PORTABLE)) || defined(QKV_FUSED)
TYPED_TEST(Vectors, FmaIsRoundedOnce) {
  using T = TypeParam;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr int n = Simd<T>::kLanes;
  std::mt19937_64 random(1);
  for (int round = 0; round < 200000; ++round) {
    T in[3][n], out[n];
    for (int lane = 0; lane < n; ++lane) {
      for (auto& operand : in) operand[lane] = std::bit_cast<T>(static_cast<Bits>(random()));
      if (round % 4 == 0) continue;
      // Sums near a number halfway between two others, and products that nearly cancel.
      const int exponent = static_cast<int>(random() % 60) - 30;
      for (auto& operand : in) operand[lane] = static_cast<T>(static_cast<double>(random() % 4097) - 2048);
      if (round % 4 == 1) in[2][lane] = -in[0][lane] * in[1][lane];
      in[2][lane] = std::ldexp(in[2][lane], exponent) + (round % 4 == 2 ? std::numeric_limits<T>::epsilon() : T{0});
      in[0][lane] *= 1 + std::ldexp(T{1}, -static_cast<int>(random() % 24));
    }
    store<T>(out, fma(load<T>(in[0]), load<T>(in[1]), load<T>(in[2])));
    for (int lane = 0; lane < n; ++lane) {
      const T wanted = std::fma(in[0][lane], in[1][lane], in[2][lane]);
      if (std::isnan(wanted) && std::isnan(out[lane])) continue;
      ASSERT_EQ(std::bit_cast<Bits>(out[lane]), std::bit_cast<Bits>(wanted))
          << in[0][lane] << " * " << in[1][lane] << " + " << in[2][lane];
    }
  }
}
#endif

TYPED_TEST(Vectors, Exp2AtTheEdges) {
  using T = TypeParam;
  const auto of = [](T y) { return exp2<T>(splat<T>(y))[0]; };
  const T inf = std::numeric_limits<T>::infinity();
  EXPECT_EQ(of(0), 1) << "exactly, so that one live key gives its value";
  EXPECT_EQ(of(-inf), 0);
  EXPECT_EQ(of(-1e30F), 0);
  EXPECT_EQ(of(sizeof(T) == 4 ? T{-127} : T{-1023}), 0);
  EXPECT_TRUE(std::isnan(of(std::numeric_limits<T>::quiet_NaN())));
  for (int n = sizeof(T) == 4 ? -126 : -1022; n <= 0; ++n) EXPECT_EQ(of(static_cast<T>(n)), std::ldexp(T{1}, n));
}

TYPED_TEST(Vectors, Exp2InRangeIsExp2OrSaysThatItIsNot) {
  using T = TypeParam;
  using U = typename Simd<T>::U;
  constexpr int n = Simd<T>::kLanes;
  const T bias = Exp2Poly<T>::kBias;
  const auto in_range = [](T y, T& p) {
    U outside{};
    T lanes[n];
    std::fill_n(lanes, n, T{0});
    lanes[n - 1] = y;  // it may be in any lane
    p = exp2_in_range<T>(load<T>(lanes), outside)[n - 1];
    const std::uint32_t found = exponents_outside<T>(outside);
    EXPECT_EQ(found & ~(1U << (n - 1)), 0U) << "the other lanes hold 0";
    return found == 0;
  };
  T p;
  std::mt19937_64 generator(5);
  std::uniform_real_distribution<T> inside(-bias, bias);
  for (int i = 0; i < 200000; ++i) {
    const T y = inside(generator);
    ASSERT_TRUE(in_range(y, p)) << y;
    ASSERT_EQ(p, exp2<T>(splat<T>(y))[0]) << y;
  }
  // Every bit pattern: in range exactly where the nearest integer is one of the exponents -bias .. bias + 1.
  std::uniform_int_distribution<typename Simd<T>::Int> any(std::numeric_limits<typename Simd<T>::Int>::min());
  int far = 0;
  for (int i = 0; i < 2000000; ++i) {
    const auto bits = any(generator);
    T y;
    std::memcpy(&y, &bits, sizeof y);
    const bool wanted = std::nearbyint(y) >= -bias && std::nearbyint(y) <= bias + 1;
    far += wanted ? 0 : 1;
    ASSERT_EQ(in_range(y, p), wanted) << y;
  }
  EXPECT_GT(far, 1000);
  for (const T y :
      {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
    EXPECT_FALSE(in_range(y, p)) << y;
  }
}

TEST_F(VectorsOfFloat, LogIsTheLogarithmOfSums) {
  constexpr Index kRows = 16;
  std::mt19937_64 generator(6);
  std::uniform_real_distribution<float> exponent(-120, 120);
  float row_max[kRows], row_sum[kRows], lse[kRows + 1], low[kRows + 1];
  for (int round = 0; round < 20000; ++round) {
    for (Index i = 0; i < kRows; ++i) {
      row_max[i] = round % 2 == 0 ? 0 : exponent(generator);
      row_sum[i] = std::exp2(round % 4 < 2 ? exponent(generator) : exponent(generator) / 2000);  // far from 1, and near
    }
    lse[kRows] = low[kRows] = -7;
    log_sum_exp(row_max, row_sum, kRows, lse, low);
    ASSERT_EQ(lse[kRows], -7);
    ASSERT_EQ(low[kRows], -7);
    for (Index i = 0; i < kRows; ++i) {
      const double part = static_cast<double>(row_max[i]) * std::log(2.0),
                   logarithm = std::log(static_cast<double>(row_sum[i]));
      const double wanted = part + logarithm;
      // Half an ulp for the result, and what remains of the series' own error where the two parts cancel.
      const double series = (std::abs(part) + std::abs(logarithm)) * 3e-12 + 0x1p-149, ulp = std::abs(wanted) * 0x1p-24;
      ASSERT_LE(std::abs(static_cast<double>(lse[i]) - wanted), ulp + series) << row_max[i] << " " << row_sum[i];
      ASSERT_LE(std::abs(static_cast<double>(lse[i]) + static_cast<double>(low[i]) - wanted), ulp * 0x1p-23 + series);
    }
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  float sums[kRows] = {0, nan, inf, 1}, maxima[kRows] = {};
  log_sum_exp(maxima, sums, 4, lse, low);
  for (Index i = 0; i < 4; ++i) EXPECT_EQ(low[i], 0);
  EXPECT_EQ(lse[0], -inf);
  EXPECT_TRUE(std::isnan(lse[1]));
  EXPECT_EQ(lse[2], inf);
  EXPECT_EQ(lse[3], 0);
}

TYPED_TEST(Vectors, TanhIsWithinEightUlps) {
  using T = TypeParam;
  const double worst = largest_ulps<T>(
      T{-25}, T{25}, static_cast<T>(0.000037), [](auto x) { return qkv::tanh<T>(x); },
      [](long double x) { return std::tanh(x); });
  std::printf("tanh: %.3f ulp\n", worst);
  EXPECT_LE(worst, 8.0);
  EXPECT_EQ(qkv::tanh<T>(splat<T>(0))[0], 0);
  EXPECT_EQ(qkv::tanh<T>(splat<T>(std::numeric_limits<T>::infinity()))[0], 1);
  EXPECT_TRUE(std::isnan(qkv::tanh<T>(splat<T>(std::numeric_limits<T>::quiet_NaN()))[0]));
}

TYPED_TEST(Vectors, TransposesGoThereAndBack) {
  using T = TypeParam;
  constexpr Index kLanes = Simd<T>::kLanes;
  for (Index rows : {1, 3, 8, 17, 32}) {
    for (Index columns : {1, 5, 16, 33}) {
      const Index stride = columns + 2, width = 32;
      std::vector<T> source(static_cast<std::size_t>(rows * stride)),
          panel(static_cast<std::size_t>(width * columns), T{-1});
      for (std::size_t n = 0; n < source.size(); ++n) source[n] = static_cast<T>(n + 1);
      pack_transposed<T>(source.data(), stride, rows, columns, T{2}, panel.data(), width);
      for (Index c = 0; c < columns; ++c) {
        for (Index r = 0; r < width; ++r) {
          const T beyond = r < (rows + kLanes - 1) / kLanes * kLanes ? T{0} : T{-1};
          const T wanted = r < rows ? 2 * source[static_cast<std::size_t>(r * stride + c)] : beyond;
          EXPECT_EQ(panel[static_cast<std::size_t>(c * width + r)], wanted) << rows << " x " << columns;
        }
      }
      std::vector<T> back(source.size(), T{-5});
      std::vector<T> factors(static_cast<std::size_t>(width));
      for (Index r = 0; r < width; ++r) factors[static_cast<std::size_t>(r)] = static_cast<T>(r + 1);
      EXPECT_EQ(unpack_transposed<T>(panel.data(), width, rows, columns, factors.data(), back.data(), stride), 0U);
      add_transposed<T>(panel.data(), width, rows, columns, back.data(), stride);
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < stride; ++c) {
          const auto n = static_cast<std::size_t>(r * stride + c);
          const T wanted = static_cast<T>(r + 1) * (2 * source[n]) + 2 * source[n];
          EXPECT_EQ(back[n], c < columns ? wanted : T{-5}) << "memory past the columns is not touched";
        }
      }
      panel[static_cast<std::size_t>((columns - 1) * width + rows - 1)] = std::numeric_limits<T>::infinity();
      EXPECT_EQ(unpack_transposed<T>(panel.data(), width, rows, columns, factors.data(), back.data(), stride),
          1U << (rows - 1));
    }
  }
}

TYPED_TEST(Vectors, TailsAndBits) {
  using T = TypeParam;
  constexpr int n = Simd<T>::kLanes;
  T memory[2 * n];
  for (int i = 0; i < 2 * n; ++i) memory[i] = static_cast<T>(i + 1);
  for (int live = 0; live <= n; ++live) {
    const auto v = load_tail<T>(memory, live);
    T target[n];
    std::fill_n(target, n, T{-9});
    store_tail<T>(target, v, live);
    const std::uint32_t bits = (1U << live) - 1U;
    EXPECT_EQ(bits_where<T>(v != splat<T>(0)), bits);
    const auto chosen = select_bits(bits | 0xFFFF0000U, splat<T>(1), splat<T>(2));
    for (int lane = 0; lane < n; ++lane) {
      EXPECT_EQ(v[lane], lane < live ? memory[lane] : T{0});
      EXPECT_EQ(target[lane], lane < live ? memory[lane] : T{-9});
      EXPECT_EQ(chosen[lane], lane < live ? 1 : 2);
    }
  }
}

TEST_F(VectorsOfFloat, PhiloxIsTheScalarOne) {
  constexpr int n = Simd<float>::kLanes;
  U32 words[4];
  std::uint32_t counter[4][n];
  for (std::uint32_t w = 0; w < 4; ++w) {
    for (std::uint32_t lane = 0; lane < n; ++lane) counter[w][lane] = lane * 0x9E3779B9U + w * 0x7F4A7C15U + 12345U;
    std::memcpy(&words[w], counter[w], sizeof words[w]);
  }
  philox(words, PhiloxRounds(0xDEADBEEFU, 0x01234567U));
  for (int lane = 0; lane < n; ++lane) {
    const PhiloxWords wanted = philox4x32(
        {counter[0][lane], counter[1][lane], counter[2][lane], counter[3][lane]}, {0xDEADBEEFU, 0x01234567U});
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(words[w][lane], wanted[w]);
  }
}

}  // namespace
}  // namespace qkv
