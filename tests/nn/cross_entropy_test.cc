// Cross-entropy and its gradient against sums in f64, on every instruction set.
#include "qkv/nn/cross_entropy.h"

#include <gtest/gtest.h>

#include "nn_support.h"
#include "support/isas.h"

namespace qkv {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

/// Rounding of one row, in units of eps: exp2 is within 2 ulp of its rounded argument, which is within an ulp of |x -
/// top| log2(e); then `columns` terms are summed.
double row_bound(double spread, Index columns) {
  return (2 * spread + 2 * std::sqrt(static_cast<double>(columns)) + 8) * kEps;
}

void check_rows_of(Index rows, Index columns, double scale, Context& context) {
  test::Random random(static_cast<std::uint64_t>(rows * 1000 + columns));
  Tensor<float> wide({rows, columns + 3}), gradient({rows, columns + 5});
  for (float& x : wide.span()) x = static_cast<float>(scale * random.symmetric());
  std::ranges::fill(gradient.span(), 77.0F);
  const auto logits = wide.view<2>().sliced(1, 0, columns), dlogits = gradient.view<2>().sliced(1, 0, columns);
  std::vector<std::int64_t> targets;
  for (Index m = 0; m < rows; ++m)
    targets.push_back(m % 5 == 3 ? -1 : static_cast<std::int64_t>(random.below(columns)));
  const double loss = nn::cross_entropy(logits, targets, dlogits, context);

  double exact = 0, bound = 0;
  const auto counted = static_cast<double>(std::ranges::count_if(targets, [](std::int64_t t) { return t >= 0; }));
  for (Index m = 0; m < rows; ++m) {
    const std::int64_t target = targets[static_cast<std::size_t>(m)];
    double sum = 0, top = -HUGE_VAL, bottom = HUGE_VAL;
    for (Index v = 0; v < columns; ++v) {
      sum += std::exp(static_cast<double>(logits(m, v)));
      top = std::max(top, static_cast<double>(logits(m, v)));
      bottom = std::min(bottom, static_cast<double>(logits(m, v)));
    }
    const double relative = row_bound(top - bottom, columns);
    for (Index v = 0; v < columns; ++v) {
      const double p = std::exp(static_cast<double>(logits(m, v))) / sum;
      const double expected = target < 0 ? 0 : (p - (v == target ? 1 : 0)) / counted;
      EXPECT_LE(std::abs(static_cast<double>(dlogits(m, v)) - expected), (relative * p + 2 * kEps) / counted)
          << m << " " << v;
    }
    for (Index v = columns; v < columns + 5; ++v) EXPECT_EQ((gradient.view<2>()(m, v)), 77.0F);
    if (target < 0) continue;
    exact += std::log(sum) - static_cast<double>(logits(m, target));
    bound += relative + kEps * (top - static_cast<double>(logits(m, target)));
  }
  EXPECT_LE(std::abs(loss - exact / counted), bound / counted) << rows << " x " << columns;
}

TEST(CrossEntropy, AgreesWithSumsInF64) {
  test::for_each_isa(1, [](Context& context) {
    check_rows_of(1, 1, 1, context);
    check_rows_of(512, 7, 3, context);
    check_rows_of(37, 65, 10, context);
    check_rows_of(19, 128, 10, context);
    check_rows_of(70, 129, 1, context);  // more than one block of columns
    check_rows_of(5, 1000, 10, context);
  });
}

TEST(CrossEntropy, ADifferenceBeyondFloatIsALoss) {
  Tensor<float> logits({1, 2}), gradient({1, 2});
  logits.data()[0] = 3e38F, logits.data()[1] = -3e38F;
  EXPECT_EQ(nn::cross_entropy(logits, std::vector<std::int64_t>{1}, gradient), 2 * static_cast<double>(3e38F));
}

TEST(CrossEntropy, ARowThatIsNotFiniteGivesNaN) {
  Tensor<float> logits({3, 4}), gradient({3, 4});
  const std::vector<std::int64_t> targets = {0, -1, 2};
  logits.data()[5] = std::numeric_limits<float>::quiet_NaN();  // in the row without a target
  EXPECT_LE(std::abs(nn::cross_entropy(logits, targets, gradient) - std::log(4.0)), 4 * kEps);
  EXPECT_EQ(gradient.data()[5], 0.0F);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    logits.data()[1] = bad;
    EXPECT_TRUE(std::isnan(nn::cross_entropy(logits, targets, gradient)));
    EXPECT_TRUE(std::isnan(gradient.data()[0]));
    EXPECT_FALSE(std::isnan(gradient.data()[8]));
  }
}

TEST(CrossEntropy, ErrorsNameWhatIsExpected) {
  Tensor<float> logits({2, 3}), gradient({2, 3}), narrow({2, 2});
  const auto with = [&](std::vector<std::int64_t> targets) {
    return test::text_of<OptionError>([&] { nn::cross_entropy(logits, targets, gradient); });
  };
  EXPECT_EQ(with({0, 3}), "[cross_entropy] targets must be in [0, 3) or -1 for none: got 3");
  EXPECT_EQ(with({-2, 0}), "[cross_entropy] targets must be in [0, 3) or -1 for none: got -2");
  EXPECT_EQ(with({-1, -1}), "[cross_entropy] at least one row must have a target: got none of 2");
  EXPECT_THROW(nn::cross_entropy(logits, std::vector<std::int64_t>{0, 1}, narrow), ShapeError);
  EXPECT_THROW(nn::cross_entropy(logits, std::vector<std::int64_t>{0}, gradient), ShapeError);
}

}  // namespace
}  // namespace qkv
