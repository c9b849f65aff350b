// The oracle itself: its gradients against finite differences in long double, its rules.
#include <gtest/gtest.h>

#include "reference/attention.h"
#include "support/checks/difference.h"
#include "support/checks/expect.h"

namespace qkv::test {
namespace {

using Real = long double;

/// sum(out * dout) + sum(lse * dlse) over rows that are not empty
Real loss(const ReferenceInput<Real>& input) {
  const reference::Forward<Real> forward = input.forward();
  Real sum = 0;
  for (Index n = 0; n < forward.out.count(); ++n) sum += forward.out.data()[n] * input.dout.data()[n];
  for (Index n = 0; n < forward.lse.count(); ++n) {
    if (std::isfinite(forward.lse.data()[n])) sum += forward.lse.data()[n] * input.dlse.data()[n];
  }
  return sum;
}

TEST(Reference, GradientsAreFiniteDifferences) {
  const std::array<MaskKind, 4> masks = {
      MaskKind::kNone, MaskKind::kCausalBottomRight, MaskKind::kKeepDense, MaskKind::kDropAll};
  const std::array<BiasKind, 4> biases = {BiasKind::kFull, BiasKind::kKeys, BiasKind::kWithInfinity, BiasKind::kHeads};
  for (std::size_t n = 0; n < 12; ++n) {
    AttentionCase each{2, 4, 2, 5, 6, 3, 2};
    each.mask = masks[n % 4];
    each.bias = biases[n / 3];
    each.softcap = n % 2 == 0 ? 1.5 : 0;
    each.dropout = n % 3 == 0 ? 0.5 : 0;
    each.scale = static_cast<ScaleKind>(n / 2 % 4);
    each.empty_row = n % 5 < 3 ? EmptyRow::kMean : EmptyRow::kZero;
    each.seed = n + 1;
    each.sinks = static_cast<SinkKind>(n % 4);
    each.position = static_cast<PositionKind>(n % 5);
    each.mod = static_cast<ModKind>(n / 2 % 3);
    SCOPED_TRACE(each.name());
    const Problem<double> problem(each);
    ReferenceInput<Real> input = problem.reference_input<Real>();
    const reference::Backward<Real> gradients = input.backward();
    const auto expect_gradient = [&](Tensor<Real>& x, const Tensor<Real>& gradient, const char* name) {
      expect_differences<Real>(x, gradient, 1e-5L, 1e-7, name, [&] { return loss(input); });
    };
    expect_gradient(input.q, gradients.dq, "dq");
    expect_gradient(input.k, gradients.dk, "dk");
    expect_gradient(input.v, gradients.dv, "dv");
    expect_gradient(input.sinks, gradients.dsinks, "dsinks");
    expect_gradient(input.position_table, gradients.dposition_table, "dposition");
    expect_gradient(input.bias, reference::reduce_to_bias(gradients.dbias, problem.bias.sizes()), "dbias");
  }
}

TEST(Reference, EmptyRowRules) {
  AttentionCase each{.q_len = 2, .kv_len = 4, .head_dim = 3, .v_head_dim = 2, .mask = MaskKind::kDropAll};
  for (const EmptyRow rule : {EmptyRow::kZero, EmptyRow::kMean, EmptyRow::kNaN}) {
    each.empty_row = rule;
    const Problem<double> problem(each);
    const reference::Forward<double> forward = problem.reference_input<double>().forward();
    for (const double lse : forward.lse.span()) EXPECT_EQ(lse, -HUGE_VAL);
    for (const double w : forward.weights.span()) {
      if (rule == EmptyRow::kNaN) {
        EXPECT_TRUE(std::isnan(w));
      } else {
        EXPECT_EQ(w, rule == EmptyRow::kMean ? 0.25 : 0.0);
      }
    }
  }
}

TEST(Reference, ANanOrInfiniteScoreGivesNan) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const Problem<double> problem({.q_len = 3, .kv_len = 4, .head_dim = 2, .v_head_dim = 2, .bias = BiasKind::kFull});
    ReferenceInput<double> input = problem.reference_input<double>();
    input.bias.data()[4 + 2] = bad;  // query 1, key 2
    const reference::Forward<double> forward = input.forward();
    for (Index n = 0; n < 6; ++n) EXPECT_EQ(std::isnan(forward.out.data()[n]), n / 2 == 1) << n;
  }
}

/// The check behind every result: a bound that is NaN decides nothing, so it fails.
TEST(Bounds, FailClosed) {
  const auto holds = [](double exact, double got, double bound) {
    Tensor<long double> exact_tensor({1});
    Tensor<double> got_tensor({1});
    exact_tensor.data()[0] = exact;
    got_tensor.data()[0] = got;
    Expected<double> expected(std::move(exact_tensor), got_tensor, Tensor<double>({1}), 2);
    expected.bounds[0] = bound;
    Worst worst;
    return static_cast<bool>(within(expected, got_tensor, "x", "x", worst)) && worst.largest() <= 1;
  };
  constexpr double kInfinity = HUGE_VAL, kNoNumber = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(holds(1, 1.5, 0.5));
  EXPECT_FALSE(holds(1, 1.5, 0.4));
  EXPECT_FALSE(holds(1, 1, kNoNumber));
  EXPECT_FALSE(holds(1, 1e9, kNoNumber));
  EXPECT_FALSE(holds(1, 1e9, kInfinity));
  EXPECT_FALSE(holds(1, 1e9, 0));
  EXPECT_FALSE(holds(1, 1, 0)) << "a bound of 0 is none: every bound has the rounding of results near 0";
  EXPECT_FALSE(holds(1, kNoNumber, 1));
  EXPECT_FALSE(holds(1, kInfinity, 1));
  EXPECT_TRUE(holds(kInfinity, kInfinity, kNoNumber));
  EXPECT_FALSE(holds(kInfinity, -kInfinity, kInfinity));
  EXPECT_TRUE(holds(kNoNumber, kNoNumber, kNoNumber));
  EXPECT_FALSE(holds(kNoNumber, 1, kInfinity));
}

}  // namespace
}  // namespace qkv::test
