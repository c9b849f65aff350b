// The vector layer of one instruction set: errors of 2^y and tanh by sweep, transposes, tails, selection by bits, Philox on
// lanes against the scalar one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/philox.h"
#include "qkv/context.h"
#include "simd/exp2.h"
#include "simd/philox.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

template <class T>
class Vectors : public testing::Test {
 protected:
  void SetUp() override {
    for (const Isa isa : supported_isas()) {
      if (isa_name(isa) == QKV_TEST_ISA) return;
    }
    GTEST_SKIP() << "this CPU has no " << QKV_TEST_ISA;
  }
};
using FloatTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(Vectors, FloatTypes);

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
      worst = std::max(
          worst, static_cast<double>(std::abs(static_cast<long double>(out[lane]) - wanted) / static_cast<long double>(ulp)));
    }
  }
  return worst;
}

TYPED_TEST(Vectors, Exp2IsWithinTwoUlps) {
  using T = TypeParam;
  const T lowest = sizeof(T) == 4 ? T{-126} : T{-1022};
  const T step = sizeof(T) == 4 ? static_cast<T>(0.0000731) : static_cast<T>(0.00091);
  const double worst = largest_ulps<T>(
      lowest, T{1}, step, [](auto y) { return exp2<T>(y); }, [](long double y) { return std::exp2(y); });
  std::printf("2^y: %.3f ulp\n", worst);
  EXPECT_LE(worst, 2.0);
}

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
      std::vector<T> source(static_cast<std::size_t>(rows * stride)), panel(static_cast<std::size_t>(width * columns), T{-1});
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
      unpack_transposed<T>(panel.data(), width, rows, columns, back.data(), stride);
      unpack_transposed<T, true>(panel.data(), width, rows, columns, back.data(), stride);
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < stride; ++c) {
          const auto n = static_cast<std::size_t>(r * stride + c);
          EXPECT_EQ(back[n], c < columns ? 4 * source[n] : T{-5}) << "memory past the columns is not touched";
        }
      }
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

TEST(VectorPhilox, IsTheScalarOne) {
  constexpr int n = Simd<float>::kLanes;
  U32 words[4];
  std::uint32_t counter[4][n];
  for (std::uint32_t w = 0; w < 4; ++w) {
    for (std::uint32_t lane = 0; lane < n; ++lane) counter[w][lane] = lane * 0x9E3779B9U + w * 0x7F4A7C15U + 12345U;
    std::memcpy(&words[w], counter[w], sizeof words[w]);
  }
  philox(words, 0xDEADBEEFU, 0x01234567U);
  for (int lane = 0; lane < n; ++lane) {
    const PhiloxWords wanted =
        philox4x32({counter[0][lane], counter[1][lane], counter[2][lane], counter[3][lane]}, {0xDEADBEEFU, 0x01234567U});
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(words[w][lane], wanted[w]);
  }
}

}  // namespace
}  // namespace qkv
