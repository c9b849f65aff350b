// Dropout: dropout_factors are the contract's rule on Philox (core/philox_test.cc); their statistics. That weights are
// multiplied by them: check_case.h.
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/attention.h"
#include "support/index.h"
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

}  // namespace
}  // namespace qkv::test
