// The scores as an output: WeightsKind::kScores.
#include "reference/scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> class ScoresAsOutput : public testing::Test {};
TYPED_TEST_SUITE(ScoresAsOutput, StorageTypes);

/// The score in f64, and how far rounding may move it: eps times the number of roundings of each term, times its size.
template <class T> struct Expected {
  using Sum = Accumulator<T>;
  ReferenceInput<double> input;
  reference::Scores<double> scores;

  explicit Expected(const Problem<T>& problem)
      : input(problem.template reference_input<double>()), scores{input.q, input.k, input.options} {}

  void expect(const Problem<T>& problem, const View<const Sum, 4>& got) const {
    const double eps = static_cast<double>(std::numeric_limits<Sum>::epsilon());
    const double width = static_cast<double>(input.q.size(3));
    for_each_index(got.sizes(), [&](Index b, Index h, Index i, Index j) {
      const double score = static_cast<double>(got(b, h, i, j));
      if (!problem.kept(b, h, i, j)) {
        ASSERT_EQ(score, -std::numeric_limits<double>::infinity()) << b << ' ' << h << ' ' << i << ' ' << j;
        return;
      }
      double terms = 0;
      for (Index n = 0; n < input.q.size(3); ++n) {
        terms += std::abs(
            input.q.template view<4>()(b, h, i, n) * input.k.template view<4>()(b, h / scores.group_size, j, n));
      }
      terms *= std::abs(scores.scale);
      const double largest = std::max({terms, std::abs(scores.bias(b, h, i, j)), std::abs(scores.position(h, i, j))});
      ASSERT_NEAR(score, scores.score(b, h, i, j), eps * ((width + 8) * terms + 8 * largest))
          << b << ' ' << h << ' ' << i << ' ' << j;
    });
  }
};

TYPED_TEST(ScoresAsOutput, AreTheTextbooks) {
  using T = TypeParam;
  for (const AttentionCase& each : part_for<T>(pairwise_cases(1e5), 2)) {
    if (each.mod != ModKind::kNone) continue;  // its error depends on its slope
    const Problem<T> problem(each);
    const Expected<T> expected(problem);
    for_each_isa(2, [&](Context& context) {
      SCOPED_TRACE(each.name());
      Result<T> alone(problem), beside(problem), plain(problem);
      const View<Accumulator<T>, 4> scores = alone.weights, with_out = beside.weights;
      attention_forward(
          problem.q(), problem.k(), {}, {.weights = scores, .kind = WeightsKind::kScores}, problem.options, context);
      expected.expect(problem, scores);
      attention_forward(problem.q(), problem.k(), problem.v(),
          {.out = beside.out.view, .lse = beside.lse, .weights = with_out, .kind = WeightsKind::kScores},
          problem.options, context);
      attention_forward(
          problem.q(), problem.k(), problem.v(), {.out = plain.out.view, .lse = plain.lse}, problem.options, context);
      EXPECT_TRUE(std::ranges::equal(alone.weights.span(), beside.weights.span()));
      EXPECT_TRUE(std::ranges::equal(plain.lse.span(), beside.lse.span(),
          [](auto x, auto y) { return x == y || (std::isnan(x) && std::isnan(y)); }));
    });
  }
}

}  // namespace
}  // namespace qkv::test
