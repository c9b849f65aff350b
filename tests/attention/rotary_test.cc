// Rotary positions: angles in f64 against long double, both layouts, partial widths, every scaling's frequencies,
// backward.
#include <gtest/gtest.h>

#include "core/maths.h"
#include "support/checks/check_rotary.h"

namespace qkv::test {
namespace {

template <class T> class RotaryTyped : public testing::Test {};
TYPED_TEST_SUITE(RotaryTyped, StorageTypes);

TYPED_TEST(RotaryTyped, TurnsAndTurnsBack) {
  for (const RotaryLayout layout : {RotaryLayout::kHalfSplit, RotaryLayout::kInterleaved}) {
    for (const Index rotary_dim : {0, 2, 8, 12}) {
      check_rotary<TypeParam>(12, {.rotary_dim = rotary_dim, .layout = layout}, 3);
    }
    const RotaryOptions yarn{.layout = layout, .scaling = RotaryScaling::kYarn, .factor = 4, .original_context = 64};
    EXPECT_GT(Rotary(16, yarn).attention_factor(), 1.1);
    check_rotary<TypeParam>(16, yarn, 3);
  }
}

TYPED_TEST(RotaryTyped, SameBitsForAnyNumberOfThreads) {
  using T = TypeParam;
  const Tensor<T> x = random_tensor<T>({3, 4, 70, 64}, 3);
  const Rotary rotary(64);
  Tensor<T> one(x.sizes());
  Context serial({.threads = 1});
  rotary.forward(x, one, {.offset = 9}, serial);
  for (int threads = 2; threads <= 5; ++threads) {
    Context context({.threads = threads});
    context.impl().region_flops = 0;
    Tensor<T> many(x.sizes());
    rotary.forward(x, many, {.offset = 9}, context);
    EXPECT_TRUE(same_bits(many, one));
  }
}

/// [B, T, H, D] and rows with a gap: only the turned columns of the given heads change.
TEST(Rotary, StridedViewsAndUntouchedColumns) {
  Tensor<double> projected = random_tensor<double>({1, 2, 6, 5 * 8}, 3);
  const Tensor<double> before = projected.clone();
  const View<double, 3> rows{projected.data(), {2, 6, 40}};  // five heads side by side
  const View<double, 4> heads = split_heads(rows.sliced(2, 8, 24), 2);
  const Rotary rotary(8, {.rotary_dim = 4});
  rotary.forward(heads, heads, {.offset = 1});
  for (Index n = 0; n < projected.count(); ++n) {
    const Index column = n % 40;
    const bool turned_column = column >= 8 && column < 24 && column % 8 < 4;
    EXPECT_EQ(projected.data()[n] != before.data()[n], turned_column) << n;
  }
}

/// The property of each scaling for fast and slow pairs; the numbers are held against Hugging Face's in python/tests.
TEST(Rotary, ScaledFrequencies) {
  const auto frequencies = [](RotaryOptions options) {
    const Rotary rotary(64, options);
    return std::vector<double>(rotary.frequencies().begin(), rotary.frequencies().end());
  };
  const std::vector<double> plain = frequencies({});
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(plain[i], std::pow(10000.0, -static_cast<double>(i) / 32), 1e-15);
    EXPECT_DOUBLE_EQ(frequencies({.scaling = RotaryScaling::kLinear, .factor = 4})[i], plain[i] / 4);
  }
  // NTK: the fastest pair stays, the slowest is divided by the factor.
  const std::vector<double> ntk = frequencies({.scaling = RotaryScaling::kNtk, .factor = 4});
  EXPECT_EQ(ntk.front(), 1);
  EXPECT_NEAR(ntk.back(), plain.back() / 4, 1e-12 * plain.back());
  for (const RotaryScaling scaling : {RotaryScaling::kYarn, RotaryScaling::kLlama3}) {
    const std::vector<double> ramp = frequencies({.scaling = scaling, .factor = 8, .original_context = 4096});
    EXPECT_EQ(ramp.front(), plain.front());
    EXPECT_DOUBLE_EQ(ramp.back(), plain.back() / 8);
    for (std::size_t i = 1; i < 32; ++i) EXPECT_LT(ramp[i], ramp[i - 1]);
  }
  EXPECT_EQ(Rotary(64, {.scaling = RotaryScaling::kYarn, .factor = 8, .original_context = 64, .attention_factor = 0.5})
                .attention_factor(),
      0.5);
}

/// Cosines and sines of the angles as tables give the same bits; any numbers give a map whose backward is its
/// transpose.
TYPED_TEST(RotaryTyped, TablesAreTheirAngles) {
  using T = TypeParam;
  constexpr Index kPositions = 40, kPairs = 5, kWidth = 12;
  for (const RotaryLayout layout : {RotaryLayout::kHalfSplit, RotaryLayout::kInterleaved}) {
    const Rotary by_angle(kWidth, {.rotary_dim = 2 * kPairs, .layout = layout});
    Tensor<double> cosines({kPositions, kPairs}), sines(cosines.sizes());
    for (Index n = 0; n < cosines.count(); ++n) {
      const double angle =
          static_cast<double>(n / kPairs) * by_angle.frequencies()[static_cast<std::size_t>(n % kPairs)];
      const maths::SineCosine is = maths::sine_cosine(angle);
      cosines.data()[n] = is.cosine;
      sines.data()[n] = is.sine;
    }
    const Rotary by_table(kWidth, View<const double, 2>(cosines), View<const double, 2>(sines), layout);
    EXPECT_EQ(by_table.rotary_dim(), 2 * kPairs);
    const Tensor<T> x = random_tensor<T>({2, 3, 7, kWidth}, 3);
    const Index ids[] = {39, 0, 3, 3, 17, 20, 1};
    for (const RotaryPositions& positions : {RotaryPositions{.offset = 33}, RotaryPositions{.ids = {ids, {1, 7}}}}) {
      Tensor<T> expected(x.sizes()), got(x.sizes());
      by_angle.forward(x, expected, positions);
      by_table.forward(x, got, positions);
      EXPECT_TRUE(same_bits(got, expected));
      by_angle.backward(x, expected, positions);
      by_table.backward(x, got, positions);
      EXPECT_TRUE(same_bits(got, expected));
    }
    Tensor<T> y(x.sizes());
    EXPECT_THROW(by_table.forward(x, y, {.offset = 34}), OptionError);
    EXPECT_THROW(by_table.forward(x, y, {.offset = -1}), OptionError);
    const View<const double, 2> narrow = View<const double, 2>(sines).sliced(1, 0, 4);
    EXPECT_THROW(Rotary(kWidth, View<const double, 2>(cosines), narrow), ShapeError);
    EXPECT_THROW(Rotary(8, View<const double, 2>(cosines), View<const double, 2>(sines)), OptionError);
  }
}

TEST(Rotary, TablesOfAnyNumbersHaveATranspose) {
  Tensor<float> cosines({9, 4}), sines({9, 4});
  for (Index n = 0; n < 36; ++n) {
    cosines.data()[n] = static_cast<float>(n % 7) - 3;
    sines.data()[n] = static_cast<float>(n % 5) / 2;
  }
  const Rotary rotary(8, View<const float, 2>(cosines), View<const float, 2>(sines));
  const Tensor<double> x = random_tensor<double>({1, 2, 9, 8}, 3);
  Tensor<double> g(x.sizes()), y(x.sizes()), back(x.sizes());
  for (Index n = 0; n < g.count(); ++n) g.data()[n] = std::sin(static_cast<double>(n));
  rotary.forward(x, y);
  rotary.backward(g, back);
  double there = 0, again = 0, size = 0;
  for (Index n = 0; n < g.count(); ++n) {
    there += y.data()[n] * g.data()[n];
    again += x.data()[n] * back.data()[n];
    size += std::abs(y.data()[n] * g.data()[n]);
  }
  EXPECT_NEAR(there, again, 64 * std::numeric_limits<double>::epsilon() * size);
}

TEST(Rotary, RefusesWhatCannotBe) {
  EXPECT_THROW(Rotary(7), OptionError);
  EXPECT_THROW(Rotary(8, {.rotary_dim = 10}), OptionError);
  EXPECT_THROW(Rotary(8, {.rotary_dim = 3}), OptionError);
  EXPECT_THROW(Rotary(8, {.base = 0}), OptionError);
  EXPECT_THROW(Rotary(8, {.base = std::nan("")}), OptionError);
  EXPECT_THROW(Rotary(8, {.scaling = RotaryScaling::kLinear, .factor = 0.5}), OptionError);
  EXPECT_THROW(Rotary(8, {.scaling = RotaryScaling::kYarn, .factor = 2}), OptionError);
  EXPECT_THROW(Rotary(8, {.factor = 2}), OptionError);
  EXPECT_THROW(Rotary(64, {.base = 1e308, .scaling = RotaryScaling::kNtk, .factor = 4}), OptionError);
  EXPECT_THROW(Rotary(64, {.base = 5e-324}), OptionError);
  EXPECT_THROW(Rotary(8, {.scaling = RotaryScaling::kLinear, .factor = 2, .attention_factor = 1}), OptionError);
  EXPECT_THROW(Rotary(2, {.scaling = RotaryScaling::kNtk, .factor = 2}), OptionError);
  const Rotary rotary(8);
  Tensor<float> x({1, 2, 3, 8}), narrow({1, 2, 3, 6});
  const Tensor<Index> ids({1, 4});
  const std::vector<Index> offsets{1, 2};
  EXPECT_THROW(rotary.forward(narrow, narrow), ShapeError);
  EXPECT_THROW(rotary.forward(x, x, {.ids = ids}), ShapeError);
  EXPECT_THROW(rotary.forward(x, x, {.offsets = offsets}), ShapeError);
  const View<float, 4> view = x;
  EXPECT_THROW(rotary.forward(view.sliced(2, 0, 2), view.sliced(2, 1, 3)), ShapeError);
}

}  // namespace
}  // namespace qkv::test
