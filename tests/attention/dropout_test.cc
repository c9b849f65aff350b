// Dropout: dropout_factors are the contract's rule on Philox (core/philox_test.cc), the weights are multiplied by them;
// their statistics.
#include <gtest/gtest.h>

#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/philox.h"

namespace qkv::test {
namespace {

TEST(Dropout, FactorsAreTheDefinition) {
  for (const double p : {0.1, 0.5, 1.0, 1.0 / 65536}) {
    for (const Index first : {Index{5}, (Index{1} << 31) - 1, Index{1} << 32}) {  // counters of 32 bits wrap
      const Dropout dropout{.p = p, .seed = 0xFEDCBA9876543210u, .training = true, .first_sequence = first};
      Tensor<float> factors({2, 3, 7, 21});
      dropout_factors(dropout, factors);
      const View<const float, 4> view = factors;
      for_each_index({2, 3, 7, 21}, [&](Index b, Index h, Index i, Index j) {
        ASSERT_EQ(view(b, h, i, j), static_cast<float>(dropout_factor(dropout, 3, b, h, i, j)));
      });
    }
  }
}

TEST(Dropout, DropsTheShareThatWasAsked) {
  for (const double p : {0.1, 0.5, 0.9}) {
    Tensor<float> factors({2, 2, 100, 250});
    dropout_factors({.p = p, .seed = 42, .training = true, .first_sequence = 0}, factors);
    double dropped = 0, sum = 0;
    for (const float x : factors.span()) dropped += x == 0, sum += static_cast<double>(x);
    const double count = static_cast<double>(factors.count()), deviation = std::sqrt(p * (1 - p) / count);
    EXPECT_NEAR(dropped / count, p, 5 * deviation);
    EXPECT_NEAR(sum / count, 1, 5 * deviation / (1 - p)) << "the mean is kept";
  }
}

TEST(Dropout, AppliedWeightsAreWeightsTimesFactors) {
  for (const double p : {0.25, 1.0}) {
    AttentionCase each{2, 3, 1, 37, 203, 8, 8};
    each.mask = MaskKind::kCausalBottomRight, each.dropout = p;
    const Problem<float> problem(each);
    Tensor<float> factors({2, 3, 37, 203});
    dropout_factors(problem.options.dropout, factors);
    for_each_isa(2, [&](Context& context) {
      Tensor<float> softmax({2, 3, 37, 203}), applied({2, 3, 37, 203});
      attention_forward(problem.q(), problem.k(), {}, {.weights = softmax}, problem.options, context);
      attention_forward(
          problem.q(), problem.k(), {}, {.weights = applied, .kind = WeightsKind::kApplied}, problem.options, context);
      for (Index n = 0; n < softmax.count(); ++n) {
        ASSERT_FLOAT_EQ(applied.data()[n], softmax.data()[n] * factors.data()[n]) << n;
        ASSERT_TRUE(factors.data()[n] != 0 || applied.data()[n] == 0) << n;
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
