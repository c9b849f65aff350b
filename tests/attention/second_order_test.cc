// Forward mode and double backward: the oracle by finite differences, the library against the oracle over the case list
// within computed bounds. Equal bits: relations_test.cc, the form derivatives.
#include <gtest/gtest.h>

#include <cmath>

#include "support/checks/difference.h"
#include "support/checks/second_expect.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

using Real = long double;

std::vector<AttentionCase> small_cases() {
  const std::array<MaskKind, 4> masks = {
      MaskKind::kNone, MaskKind::kCausalBottomRight, MaskKind::kKeepDense, MaskKind::kDropAll};
  const std::array<BiasKind, 4> biases = {BiasKind::kFull, BiasKind::kKeys, BiasKind::kWithInfinity, BiasKind::kNone};
  std::vector<AttentionCase> cases;
  for (std::size_t n = 0; n < 15; ++n) {
    AttentionCase each{2, 4, 2, 4, 5, 3, 2};
    each.mask = masks[n % 4];
    each.bias = biases[n / 4];
    each.softcap = n % 2 == 0 ? 1.5 : 0;
    each.dropout = n % 3 == 0 ? 0.5 : 0;
    each.scale = static_cast<ScaleKind>(n / 2 % 4);
    each.empty_row = n % 5 < 3 ? EmptyRow::kMean : EmptyRow::kZero;
    each.seed = n;
    each.sinks = n % 3 == 1 ? SinkKind::kSome : SinkKind::kNone;
    each.position = static_cast<PositionKind>(n % 7 < 5 ? n % 7 : 0);
    cases.push_back(each);
  }
  return cases;
}

Real inner(const Tensor<Real>& a, const Tensor<Real>& b) {
  Real sum = 0;
  for (Index n = 0; n < a.count(); ++n) {
    if (std::isfinite(a.data()[n]) && std::isfinite(b.data()[n]))
      sum += a.data()[n] * b.data()[n];  // rates at -inf are NaN
  }
  return sum;
}

/// <ddq, dq> + <ddk, dk> + <ddv, dv> + <ddbias, dbias>
Real loss_of_gradients(const SecondInput<Real>& input) {
  const reference::Backward<Real> first = input.first.backward();
  Real sum = inner(input.q, first.dq) * (input.q.rank() > 0) + inner(input.k, first.dk) * (input.k.rank() > 0) +
             inner(input.v, first.dv) * (input.v.rank() > 0);
  if (input.bias.rank() > 0) {
    sum += inner(input.bias, reference::reduce_to_bias(first.dbias, View<const Real, 4>(input.bias).sizes()));
  }
  if (input.sinks.rank() > 0) sum += inner(input.sinks, first.dsinks);
  if (input.position_table.rank() > 0) sum += inner(input.position_table, first.dposition_table);
  return sum;
}

constexpr Real kStep =
    1e-5L;  // error of a central difference: step^2 from the third derivative, 1e-19 / step from rounding

void move(Tensor<Real>& x, const Tensor<Real>& direction, Real step) {
  for (Index n = 0; n < direction.count() && direction.rank() > 0; ++n) {
    if (std::isfinite(direction.data()[n])) x.data()[n] += step * direction.data()[n];
  }
}

reference::Forward<Real> moved_forward(SecondInput<Real>& input, Real step) {
  move(input.first.q, input.q, step), move(input.first.k, input.k, step), move(input.first.v, input.v, step);
  move(input.first.bias, input.bias, step), move(input.first.sinks, input.sinks, step);
  move(input.first.position_table, input.position_table, step);
  return input.first.forward();
}

TEST(SecondOrder, TheReferencesForwardModeIsAFiniteDifference) {
  for (const AttentionCase& each : small_cases()) {
    SCOPED_TRACE(each.name());
    const Problem<double> first(each);
    const SecondProblem<double> problem(first);
    SecondInput<Real> input = problem.reference_input<Real>();
    const reference::Jvp<Real> rates = input.jvp();
    const reference::Forward<Real> above = moved_forward(input, kStep), below = moved_forward(input, -2 * kStep);
    for (Index n = 0; n < rates.out.count(); ++n) {
      const Real difference = (above.out.data()[n] - below.out.data()[n]) / (2 * kStep);
      EXPECT_NEAR(static_cast<double>(rates.out.data()[n]), static_cast<double>(difference), 1e-7) << "out " << n;
    }
    for (Index n = 0; n < rates.lse.count(); ++n) {
      if (!std::isfinite(above.lse.data()[n])) continue;
      const Real difference = (above.lse.data()[n] - below.lse.data()[n]) / (2 * kStep);
      EXPECT_NEAR(static_cast<double>(rates.lse.data()[n]), static_cast<double>(difference), 1e-7) << "lse " << n;
    }
  }
}

TEST(SecondOrder, TheReferencesDoubleBackwardIsAFiniteDifference) {
  for (const AttentionCase& each : small_cases()) {
    SCOPED_TRACE(each.name());
    const Problem<double> first(each);
    const SecondProblem<double> problem(first);
    SecondInput<Real> input = problem.reference_input<Real>();
    const reference::DoubleBackward<Real> exact = input.double_backward();
    const reference::Jvp<Real> rates = input.jvp();  // bounds take one for the other
    EXPECT_TRUE(same_bits(exact.dout, rates.out) && same_bits(exact.dlse, rates.lse));
    const auto expect_gradient = [&](Tensor<Real>& x, const Tensor<Real>& gradient, const char* name) {
      expect_differences<Real>(x, gradient, kStep, 1e-7, name, [&] { return loss_of_gradients(input); });
    };
    expect_gradient(input.first.q, exact.q, "q");
    expect_gradient(input.first.k, exact.k, "k");
    expect_gradient(input.first.v, exact.v, "v");
    expect_gradient(input.first.dout, exact.dout, "dout");
    expect_gradient(input.first.dlse, exact.dlse, "dlse");
    if (input.first.position_table.rank() > 0) {
      expect_gradient(input.first.position_table, exact.position_table, "position table");
    }
    if (input.first.sinks.rank() > 0) expect_gradient(input.first.sinks, exact.sinks, "sinks");
    if (input.first.bias.rank() > 0) {
      expect_gradient(input.first.bias,
          reference::reduce_to_bias(exact.bias, View<const Real, 4>(input.first.bias).sizes()), "bias");
    }
  }
}

template <class T> void run_cases(const std::vector<AttentionCase>& cases, const char* title) {
  Worst worst;
  for (const AttentionCase& each : cases) check_second_case<T>(each, worst);
  worst.print(title);
}

/// The cases without their callbacks, which second order refuses.
std::vector<AttentionCase> without_mods(std::vector<AttentionCase> cases) {
  for (AttentionCase& each : cases) each.mod = ModKind::kNone;
  return cases;
}

/// Every `parts`-th case from `part` on of every second of the pairwise list; in f64, which takes long double to judge,
/// of every fourth.
template <class T> std::vector<AttentionCase> part_of_list(double max_work, std::size_t part, std::size_t parts) {
  const std::vector<AttentionCase> all =
      part_for<T>(without_mods(pairwise_cases(max_work)), std::is_same_v<T, double> ? 4 : 2);
  std::vector<AttentionCase> some;
  for (std::size_t n = part; n < all.size(); n += parts) some.push_back(all[n]);
  return some;
}

TEST(SecondOrder, EdgesF32) { run_cases<float>(without_mods(edge_cases()), "second order, edges f32"); }
TEST(SecondOrder, EdgesF64) { run_cases<double>(without_mods(edge_cases()), "second order, edges f64"); }

constexpr std::size_t kNumParts = 3;
class SecondOrderPairwise : public testing::TestWithParam<std::size_t> {};
TEST_P(SecondOrderPairwise, F32) {
  run_cases<float>(part_of_list<float>(1e6, GetParam(), kNumParts), "second order f32");
}
TEST_P(SecondOrderPairwise, F64) {
  run_cases<double>(part_of_list<double>(2e5, GetParam(), kNumParts), "second order f64");
}
INSTANTIATE_TEST_SUITE_P(SecondOrder, SecondOrderPairwise, testing::Range<std::size_t>(0, kNumParts));

template <class T> class SecondOrderBits : public testing::Test {};
TYPED_TEST_SUITE(SecondOrderBits, FloatTypes);

/// A NaN in one row of q, k, v, dout or a tangent reaches what the reference says, and nothing else.
TYPED_TEST(SecondOrderBits, NanReachesWhatTheReferenceSays) {
  using T = TypeParam;
  for (int part = 0; part < 7; ++part) {
    for (const Index row : {3, 139}) {
      const Problem<T> first(
          {.q_len = 140, .kv_len = 140, .head_dim = 20, .v_head_dim = 9, .mask = MaskKind::kCausal, .seed = 5});
      const SecondProblem<T> problem(first);
      const View<T, 4> inputs[] = {problem.first.q(), problem.first.k(), problem.first.v(), problem.first.dout.view,
          problem.moved.views[0], problem.moved.views[1], problem.moved.views[2]};
      inputs[part](0, 0, row, 5) = kQuietNan<T>;
      const SecondExpectation<T> expectation(problem);
      Worst worst;
      const std::string name = "part " + std::to_string(part) + ", row " + std::to_string(row);
      for_each_isa(2, [&](Context& context) {
        SecondResult<T> result(problem);
        result.run(problem, context);
        EXPECT_TRUE(expectation.holds(result, name, worst));
      });
    }
  }
}

TEST(SecondOrder, WhatIsNotSupportedIsNamed) {
  const Tensor<double> q({1, 1, 2, 3}), lse({1, 1, 2});
  Tensor<double> tout({1, 1, 2, 3});
  const Capture what{.statistics = true};
  CaptureResult found;
  AttentionOptions modified, captured;
  modified.score_mod = score_mod([](auto s, Index, Index, Index, Index) { return s; });
  captured.capture = {what, found};
  for (const AttentionOptions& options : {modified, captured}) {
    EXPECT_THROW(attention_jvp(q, q, q, lse, {.q = q}, tout, {}, options), UnsupportedError);
    EXPECT_THROW(attention_double_backward(q, q, q, q, lse, q, {.q = q}, {.gq = tout}, options), UnsupportedError);
  }
}

/// What calls before it left in the scratch does not count.
TEST(SecondOrder, NoKeysGiveABiasNothing) {
  Context context({.threads = 1});
  Tensor<float> q({1, 2, 40, 8}), lse({1, 2, 40}), bias({1, 1, 1, 1}), gbias({1, 1, 1, 1});
  for (Index n = 0; n < q.count(); ++n) q.data()[n] = static_cast<float>(n % 13) / 8;
  const Tensor<float> by_key({1, 1, 1, 40});
  Tensor<float> of_key(by_key.sizes());
  attention_double_backward(q, q, q, q, lse, q, {.q = q}, {.gbias = of_key}, {.bias = by_key}, context);
  const View<const float, 4> none(q.data(), {1, 2, 0, 8});
  attention_double_backward(q, none, none, q, lse, q, {.q = q}, {.gbias = gbias}, {.bias = bias}, context);
  EXPECT_EQ(gbias.data()[0], 0);
}

TEST(SecondOrder, WrongSizesAreNamed) {
  const Tensor<float> q({1, 2, 4, 8}), k({1, 1, 5, 8}), v({1, 1, 5, 3}), wrong({1, 2, 4, 7}), lse({1, 2, 4});
  Tensor<float> tout({1, 2, 4, 3}), tlse({1, 2, 4});
  const auto jvp = [&](const AttentionTangents<float>& tangents, View<const float, 3> rows) {
    attention_jvp(q, k, v, rows, tangents, tout, tlse);
  };
  EXPECT_THROW(jvp({.q = wrong}, lse), ShapeError);
  EXPECT_THROW(jvp({.k = wrong}, lse), ShapeError);
  EXPECT_THROW(jvp({.v = wrong}, lse), ShapeError);
  EXPECT_THROW(jvp({.bias = wrong}, lse), ShapeError) << "there is no bias";
  EXPECT_THROW(jvp({.q = q}, {}), ShapeError) << "no lse";
  EXPECT_THROW(attention_jvp(q, k, v, lse, {.q = q}, tout, View<float, 3>(tout.data(), {1, 2, 4})), ShapeError)
      << "outputs overlap";
  const Tensor<float> out({1, 2, 4, 3}), dout({1, 2, 4, 3});
  Tensor<float> gq({1, 2, 4, 8}), bad({1, 2, 4, 9});
  EXPECT_THROW(attention_double_backward(q, k, v, out, lse, dout, {.q = q}, {.gq = bad}), ShapeError);
  EXPECT_THROW(attention_double_backward(q, k, v, out, lse, dout, {.q = gq}, {.gq = gq}), ShapeError) << "in place";
  EXPECT_THROW(attention_double_backward(q, k, v, out, lse, q, {.q = q}, {.gq = gq}), ShapeError) << "dout";
}

}  // namespace
}  // namespace qkv::test
