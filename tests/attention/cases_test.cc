// Every case of the list, forward, weights and backward, each type, on every instruction set, within computed bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/expect.h"

namespace qkv::test {
namespace {

/// Weights from the same pass as out: they are right, and out and lse have the bits that forward alone gives.
template <class T>
void expect_weights_beside_out(const Problem<T>& problem, const Expectation<T>& expectation, const Result<T>& alone,
                               const std::string& name, Worst& worst, Context& context) {
  Result<T> both(problem);
  attention_forward_with_weights(problem.q(), problem.k(), problem.v(), both.out.view, both.lse, both.weights, problem.options,
                                 WeightsKind::kSoftmax, context);
  EXPECT_TRUE(expectation.holds_weights(both, name + " beside out", worst));
  const auto same = [](const auto& a, const auto& b) {
    return a.count() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(*a.data())) == 0;
  };
  if (problem.c.cache == CacheKind::kNone) {  // on a cache few queries meet few keys by another algorithm
    EXPECT_TRUE(same(alone.lse, both.lse)) << "lse beside weights";
    EXPECT_TRUE(same(copy_as<T>(alone.out.view), copy_as<T>(both.out.view))) << "out beside weights";
  }
  if (!problem.options.dropout.active() || problem.c.empty_row != EmptyRow::kZero) return;
  // Applied: what dropout keeps is its factor times the weight, the rest is 0.
  attention_forward_with_weights(problem.q(), problem.k(), problem.v(), both.out.view, both.lse, both.weights, problem.options,
                                 WeightsKind::kApplied, context);
  Tensor<float> factors({both.weights.size(0), both.weights.size(1), both.weights.size(2), both.weights.size(3)});
  dropout_factors(problem.options.dropout, factors);
  const double factor = 65536.0 / (65536.0 - std::round(problem.options.dropout.p * 65536.0));  // those are its float
  for (Index n = 0; n < factors.count(); ++n) {
    auto& weight = both.weights.data()[n];
    if (factors.data()[n] == 0) {
      EXPECT_TRUE(weight == 0 || std::isnan(weight)) << "a dropped weight";
      weight = alone.weights.data()[n];
    } else {
      weight = static_cast<Accumulator<T>>(weight / factor);
    }
  }
  EXPECT_TRUE(expectation.holds_weights(both, name + " applied", worst));
}

/// Runs cases on every ISA; prints the worst ratio of error to bound for each output.
template <class T>
void run_cases(const std::vector<AttentionCase>& cases, const char* title) {
  Worst worst;
  for (const AttentionCase& each : cases) {
    ASSERT_TRUE(each.legal()) << each.name();
    SCOPED_TRACE(each.name());
    const Problem<T> problem(each);
    const Expectation<T> expectation(problem);
    for (const Isa isa : supported_isas()) {
      SCOPED_TRACE(std::string(isa_name(isa)));
      Context context({.threads = 1, .isa = isa, .executor = nullptr});
      ASSERT_EQ(context.isa(), isa) << "the forced instruction set is not active";
      Result<T> result(problem);
      const std::string name = each.name() + " " + std::string(isa_name(isa));
      result.run_forward(problem, context);
      EXPECT_TRUE(expectation.holds_forward(result, name, worst));
      result.run_weights(problem, context);
      EXPECT_TRUE(expectation.holds_weights(result, name, worst));
      result.run_backward(problem, context);
      EXPECT_TRUE(expectation.holds_backward(result, name, worst));
      expect_weights_beside_out(problem, expectation, result, name, worst, context);
      EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
    }
  }
  worst.print(title);
}

TEST(AttentionCases, EdgesF32) { run_cases<float>(edge_cases(), "edges f32"); }
TEST(AttentionCases, EdgesF64) { run_cases<double>(edge_cases(), "edges f64"); }
TEST(AttentionCases, EdgesBf16) { run_cases<BFloat16>(edge_cases(), "edges bf16"); }
TEST(AttentionCases, EdgesF16) { run_cases<Float16>(edge_cases(), "edges f16"); }
// The pairwise list in parts, so that ctest runs them beside one another.
constexpr std::size_t kNumParts = 4;

class Pairwise : public testing::TestWithParam<std::size_t> {
 protected:
  template <class T>
  void run_part(double max_work, const char* title) {
    const std::vector<AttentionCase> all = pairwise_cases(max_work);
    std::vector<AttentionCase> part;
    for (std::size_t n = GetParam(); n < all.size(); n += kNumParts) part.push_back(all[n]);
    ASSERT_FALSE(part.empty());
    run_cases<T>(part, title);
  }
};

TEST_P(Pairwise, F32) { run_part<float>(kPairwiseWork, "pairwise f32"); }
// Smaller: long double, in which the truth about f64 is computed, is slow.
TEST_P(Pairwise, F64) { run_part<double>(6e5, "pairwise f64"); }
TEST_P(Pairwise, Bf16) { run_part<BFloat16>(1e6, "pairwise bf16"); }
TEST_P(Pairwise, F16) { run_part<Float16>(1e6, "pairwise f16"); }
INSTANTIATE_TEST_SUITE_P(AttentionCases, Pairwise, testing::Range<std::size_t>(0, kNumParts));

TEST(AttentionCases, NamesAreUnique) {
  std::set<std::string> names;
  const std::vector<AttentionCase> cases = pairwise_cases();
  for (const AttentionCase& each : cases) names.insert(each.name());
  EXPECT_EQ(names.size(), cases.size());
  std::printf("pairwise list: %zu cases\n", cases.size());
}

}  // namespace
}  // namespace qkv::test
