// One case of the list held against the textbook: forward, weights, weights beside the output, backward, on every
// instruction set.
#pragma once

#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {

/// Weights from the same pass as out: they are right, and out and lse are bit-identical to those of forward alone.
template <class T> void expect_weights_beside_out(const Problem<T>& problem, const Expectation<T>& expectation,
    const Result<T>& alone, const std::string& name, Worst& worst, Context& context) {
  Result<T> both(problem);
  attention_forward(problem.q(), problem.k(), problem.v(),
      {.out = both.out.view, .lse = both.lse, .weights = both.weights}, problem.options, context);
  EXPECT_TRUE(expectation.holds_weights(both, name + " beside out", worst));
  const auto same = [](const auto& a, const auto& b) {
    return a.count() == 0 ||
           std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(*a.data())) == 0;
  };
  if (problem.c.cache == CacheKind::kNone) {  // on a cache few queries meet few keys by another algorithm
    EXPECT_TRUE(same(alone.lse, both.lse)) << "lse beside weights";
    EXPECT_TRUE(same(copy_as<T>(alone.out.view), copy_as<T>(both.out.view))) << "out beside weights";
  }
  if (!problem.options.dropout.active() || problem.c.empty_row != EmptyRow::kZero) return;
  // Applied, beside out and alone: what dropout keeps is its factor times the weight, the rest is 0.
  Tensor<float> factors({both.weights.size(0), both.weights.size(1), both.weights.size(2), both.weights.size(3)});
  dropout_factors(problem.options.dropout, factors);
  const double factor = 65536.0 / (65536.0 - std::round(problem.options.dropout.p * 65536.0));  // those are its float
  for (const bool beside : {true, false}) {
    AttentionOutputs<T> wanted{.weights = both.weights, .kind = WeightsKind::kApplied};
    if (beside) wanted.out = both.out.view, wanted.lse = both.lse;
    attention_forward(problem.q(), problem.k(), beside ? problem.v() : View<T, 4>(), wanted, problem.options, context);
    for (Index n = 0; n < factors.count(); ++n) {
      auto& weight = both.weights.data()[n];
      if (factors.data()[n] == 0) {
        EXPECT_TRUE(weight == 0 || std::isnan(weight)) << "a dropped weight";
        weight = alone.weights.data()[n];
      } else {
        weight = static_cast<Accumulator<T>>(weight / factor);
      }
    }
    EXPECT_TRUE(expectation.holds_weights(both, name + (beside ? " applied beside out" : " applied"), worst));
  }
}

template <class T> void check_case(const AttentionCase& each, Worst& worst) {
  ASSERT_TRUE(each.legal()) << each.name();
  SCOPED_TRACE(each.name());
  const Problem<T> problem(each);
  const Expectation<T> expectation(problem);
  for_each_isa(1, [&](Context& context) {
    Result<T> result(problem);
    const std::string name = each.name() + " " + std::string(isa_name(context.isa()));
    result.run_forward(problem, context);
    EXPECT_TRUE(expectation.holds_forward(result, name, worst));
    result.run_weights(problem, context);
    EXPECT_TRUE(expectation.holds_weights(result, name, worst));
    result.run_backward(problem, context);
    EXPECT_TRUE(expectation.holds_backward(result, name, worst));
    expect_weights_beside_out(problem, expectation, result, name, worst, context);
    EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
  });
}

}  // namespace qkv::test
