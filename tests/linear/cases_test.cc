// Linear attention against the reference over the case list: forward, states and gradients, every instruction set, both
// types; and the reference against itself: square, recurrence and finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linear/check_linear.h"
#include "support/part.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class T> class Linear : public testing::Test {};
TYPED_TEST_SUITE(Linear, FloatTypes);

template <class T> void hold_cases(const std::vector<LinearCase>& cases, int threads) {
  Worst worst;
  for (const LinearCase& each : cases) check_linear_case<T>(each, threads, worst);
  worst.print(sizeof(T) == 4 ? "f32" : "f64");
}

TYPED_TEST(Linear, PairwiseCasesAreWithinTheirBounds) {
  const auto cases = linear_pairwise_cases();
  std::printf("%zu cases\n", cases.size());
  hold_cases<TypeParam>(part_for<TypeParam>(cases, std::is_same_v<TypeParam, double> ? 2 : 1), 2);
}

TYPED_TEST(Linear, EdgeCasesAreWithinTheirBounds) { hold_cases<TypeParam>(linear_edge_cases(), 3); }

/// With keys of 0 the state only decays: by the exponential of a sum of logarithms, within the 4 eps of any bound,
/// however large the sum and however many its tokens.
TYPED_TEST(Linear, ADecayIsThePowerOfItsWholeLogarithm) {
  using T = TypeParam;
  for (const Index length : {1, 7, 64, 65, 2000}) {
    for (const double total : {-0.5, -4.0, -40.0, -80.0, 30.0}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, " << total);
      Tensor<T> zeros({1, 1, length, 3}), out({1, 1, length, 3}), log_decay({1, 1, length}), before({1, 1, 3, 3}),
          after({1, 1, 3, 3});
      std::ranges::fill(before.span(), T{1});
      Random random(static_cast<std::uint64_t>(length));
      long double sum = 0;
      for (T& x : log_decay.span()) {
        x = static_cast<T>(total / static_cast<double>(length) * (1 + 0.5 * random.symmetric()));
        sum += static_cast<long double>(x);
      }
      LinearAttentionOptions<T> options{.feature_map = FeatureMap::kIdentity, .causal = true, .normalized = false};
      options.log_decay = log_decay;
      options.initial.kv = before;
      const long double wanted = std::exp(sum);
      for_each_isa(2, [&](Context& context) {
        linear_attention_forward(zeros, zeros, zeros, out, {}, options, LinearState<T>{.kv = after}, context);
        EXPECT_LE(std::abs(static_cast<long double>(after.data()[4]) - wanted),
            4 * std::numeric_limits<T>::epsilon() * wanted);
      });
    }
  }
}

/// A sum of weights that decayed until it is subnormal divides nothing: 1 / n would be infinite, and gradients NaN.
TYPED_TEST(Linear, ASubnormalNormalizerIsNone) {
  using T = TypeParam;
  Tensor<T> ones({1, 1, 2, 1}), k({1, 1, 2, 1}), decay({1, 1, 2}), out({1, 1, 2, 1}), n({1, 1, 2});
  Tensor<T> dq({1, 1, 2, 1}), dk({1, 1, 2, 1}), dv({1, 1, 2, 1}), ddecay({1, 1, 2});
  std::ranges::fill(ones.span(), T{1});
  k.data()[0] = T{1} / 16;
  decay.data()[1] = std::log(std::numeric_limits<T>::min() * 2);
  const LinearAttentionOptions<T> options{.feature_map = FeatureMap::kRelu, .causal = true, .log_decay = decay};
  for_each_isa(1, [&](Context& context) {
    linear_attention_forward(ones, k, ones, out, n, options, {}, context);
    linear_attention_backward(
        ones, k, ones, out, n, ones, {.dq = dq, .dk = dk, .dv = dv, .dlog_decay = ddecay}, options, context);
    EXPECT_GT(n.data()[1], 0);
    EXPECT_EQ(out.data()[0], 1);
    EXPECT_EQ(out.data()[1], 0);
    for (const Tensor<T>* gradient : {&dq, &dk, &dv, &ddecay})
      for (const T x : gradient->span()) EXPECT_TRUE(std::isfinite(x));
  });
}

/// Where every decay is strong, gradients of decays are tiny, and channels that keep everything have large ones. With
/// positive numbers no term cancels another, so that each gradient is right to a few eps of itself.
TYPED_TEST(Linear, TheGradientOfAStrongDecayKeepsItsDigits) {
  using T = TypeParam;
  LinearCase c{1, 1, 1, 1, 40, 40, 19, 7};
  c.map = FeatureMap::kIdentity, c.order = Order::kChannels, c.normalized = false;
  LinearProblem<T> problem(c);
  Random random(5);
  for (const View<T, 4>& view : {problem.q(), problem.k(), problem.v(), problem.dout.view}) {
    for (Index t = 0; t < c.kv_len; ++t) {
      for (Index d = 0; d < view.size(3); ++d) view(0, 0, t, d) = static_cast<T>(0.5 + random.unit());
    }
  }
  Index n = 0;
  for (T& x : problem.channels.span()) x = n++ % 5 == 0 ? T{0} : T{-20};
  const auto exact = problem.template reference_input<long double>().backward().dchannels;
  // Each sum has at most 40 * 7 terms for a pair; a term is a product of up to 40 decays and of 4 numbers.
  const long double bound = (40 * 7 + 4 * 40) * std::numeric_limits<T>::epsilon();
  for_each_isa(1, [&](Context& context) {
    LinearResult<T> result(problem);
    result.run(problem, context);
    const T smallest = std::numeric_limits<T>::min();
    for (Index e = 0; e < exact.count(); ++e) {
      const long double want = exact.data()[e];
      EXPECT_LE(std::abs(static_cast<long double>(result.dchannels.data()[e]) - want), bound * want + 40 * smallest)
          << e;
    }
  });
}

/// Largest |a - b| in units of the magnitude.
double apart(const Tensor<long double>& a, const Tensor<long double>& b, const Tensor<Measured>& size) {
  double worst = 0;
  for (Index n = 0; n < a.count(); ++n) {
    const double error = static_cast<double>(std::abs(a.data()[n] - b.data()[n])) / (size.data()[n].size + 1e-300);
    if (!(error <= worst)) worst = error;  // NaN too
  }
  return worst;
}

TEST(LinearReference, TheSquareIsTheRecurrence) {
  for (const LinearCase& each : part_for<double>(linear_pairwise_cases(), 2)) {
    SCOPED_TRACE(each.name());
    const LinearProblem<double> problem(each);
    const auto input = problem.reference_input<long double>();
    const auto square = input.quadratic();
    const auto recurrent = input.forward();
    const auto size = problem.reference_input<Measured>().forward();
    EXPECT_LT(apart(square.out, recurrent.out, size.out), 1e-15);
    if (!each.normalized) continue;
    EXPECT_LT(apart(square.normalizer, recurrent.normalizer, size.normalizer), 1e-15);
  }
}

/// sum(out * dout) + sum(final state * its gradient)
long double loss_of(const LinearReferenceInput<long double>& in) {
  const auto forward = in.forward();
  long double loss = 0;
  const auto add = [&](const Tensor<long double>& a, const Tensor<long double>& b) {
    for (Index n = 0; b.data() != nullptr && n < a.count(); ++n) loss += a.data()[n] * b.data()[n];
  };
  add(forward.out, in.dout), add(forward.kv, in.dkv), add(forward.z, in.dz);
  return loss;
}

/// Central differences with respect to one number of an input tensor.
void expect_slopes(LinearReferenceInput<long double>& in, Tensor<long double>& x, const Tensor<long double>& gradient,
    Random& random, const char* name) {
  if (x.data() == nullptr || gradient.data() == nullptr) return;
  for (int pick = 0; pick < 3; ++pick) {
    const Index n = random.below(x.count());
    long double& entry = x.data()[n];
    const long double before = entry, step = 1e-6L;
    entry = before + step;
    const long double above = loss_of(in);
    entry = before - step;
    const long double below = loss_of(in);
    entry = before;
    const double slope = static_cast<double>((above - below) / (2 * step)),
                 made = static_cast<double>(gradient.data()[n]);
    EXPECT_NEAR(slope, made, 1e-7 * (1 + std::abs(made))) << name << " " << n;
  }
}

TEST(LinearReference, GradientsAreFiniteDifferences) {
  Random random(3);
  int checked = 0;
  for (LinearCase each : linear_pairwise_cases()) {
    each.kv_len = std::min<Index>(each.kv_len, 9),
    each.q_len = std::min<Index>(each.q_len, each.causal() ? each.kv_len : 5);
    each.head_dim = std::min<Index>(each.head_dim, 4), each.v_head_dim = std::min<Index>(each.v_head_dim, 3);
    each.layout = Layout::kBhtd;
    if (each.order == Order::kForgetting) each.order = Order::kCausalDecay;
    if (each.order == Order::kForgettingChannels) each.order = Order::kDeltaChannels;
    SCOPED_TRACE(each.name());
    const LinearProblem<double> problem(each);
    auto in = problem.reference_input<long double>();
    const auto gradients = in.backward();
    expect_slopes(in, in.q, gradients.dq, random, "q");
    expect_slopes(in, in.k, gradients.dk, random, "k");
    expect_slopes(in, in.v, gradients.dv, random, "v");
    expect_slopes(in, in.beta, gradients.dbeta, random, "beta");
    const Tensor<long double> decay = reduced(gradients.dlog_decay, in.log_decay);
    expect_slopes(in, in.log_decay, decay, random, "log_decay");
    const Tensor<long double> channels = reduced(gradients.dchannels, in.channels);
    expect_slopes(in, in.channels, channels, random, "channels");
    expect_slopes(in, in.kv, gradients.dkv, random, "kv");
    expect_slopes(in, in.z, gradients.dz, random, "z");
    ++checked;
  }
  EXPECT_GT(checked, 30);
}

}  // namespace
}  // namespace qkv::test
