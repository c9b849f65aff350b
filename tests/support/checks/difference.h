// Gradients against central differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "qkv/tensor.h"

namespace qkv::test {

/// `gradient` of every element of x, which loss() reads, within `bound`. A step errs by step^2 from the third
/// derivative and by eps / step from rounding. A number that is not finite is no variable, and its gradient 0.
template <class Real, class Loss> void expect_differences(
    Tensor<Real>& x, const Tensor<Real>& gradient, Real step, double bound, const char* name, const Loss& loss) {
  ASSERT_EQ(x.count(), gradient.count()) << name;
  for (Index n = 0; n < x.count(); ++n) {
    const Real kept = x.data()[n];
    if (!std::isfinite(kept)) {
      EXPECT_EQ(gradient.data()[n], 0) << name << " " << n;
      continue;
    }
    x.data()[n] = kept + step;
    const Real above = loss();
    x.data()[n] = kept - step;
    const Real below = loss();
    x.data()[n] = kept;
    EXPECT_NEAR(static_cast<double>(gradient.data()[n]), static_cast<double>((above - below) / (2 * step)), bound)
        << name << " " << n;
  }
}

}  // namespace qkv::test
