// Scores and values at the ends of what a type can hold: rows that are large or small as a whole, a maximum that moves
// from chunk to chunk, values next to overflow and underflow. The quick softmax takes some lanes and leaves others to
// their maximum; none may see what its neighbours do.
#include <gtest/gtest.h>

#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class Range : public testing::Test {};
TYPED_TEST_SUITE(Range, FloatTypes);

AttentionCase base_case(MaskKind mask) {
  AttentionCase each{1, 2, 2, 75, 75, 9, 17};
  each.mask = mask;
  each.bias = BiasKind::kFull;
  if (mask != MaskKind::kCausal) each.kv_len = 410;  // several chunks
  return each;
}

/// bias(i, j) += offset(i, j) in every head.
template <class T, class Offset> void shift_scores(Problem<T>& problem, const Offset& offset) {
  for_each_index({problem.bias.size(1), problem.bias.size(2), problem.bias.size(3)},
      [&](Index h, Index i, Index j) { problem.bias(0, h, i, j) += static_cast<T>(offset(i, j)); });
}

template <class T> void expect_within_bounds(const Problem<T>& problem, const std::string& name, Worst& worst) {
  const Expectation<T> expectation(problem);
  for_each_isa(1, [&](Context& context) {
    Result<T> result(problem);
    result.run_forward(problem, context);
    EXPECT_TRUE(expectation.holds_forward(result, name, worst));
    result.run_weights(problem, context);
    EXPECT_TRUE(expectation.holds_weights(result, name, worst));
    result.run_backward(problem, context);
    EXPECT_TRUE(expectation.holds_backward(result, name, worst));
  });
}

TYPED_TEST(Range, RowsOfAnySize) {
  using T = TypeParam;
  const double offsets[] = {-3000, -700, -90, -20, -4, 0, 4, 20, 44, 90, 700, 3000};
  Worst worst;
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausal}) {
    Problem<T> problem(base_case(mask));
    shift_scores(problem, [&](Index i, Index) { return offsets[i % 12]; });
    expect_within_bounds(problem, problem.c.name(), worst);
  }
  worst.print("rows");
}

TYPED_TEST(Range, AMaximumThatMoves) {
  using T = TypeParam;
  Worst worst;
  for (const double slope : {-2.0, -0.3, 0.3, 2.0}) {
    for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausal}) {
      Problem<T> problem(base_case(mask));
      shift_scores(
          problem, [&](Index i, Index j) { return slope * static_cast<double>(j) * static_cast<double>(i % 4); });
      expect_within_bounds(problem, problem.c.name() + " slope " + std::to_string(slope), worst);
    }
  }
  worst.print("moving");
}

TYPED_TEST(Range, ValuesNextToOverflowAndUnderflow) {
  using T = TypeParam;
  const double largest = static_cast<double>(std::numeric_limits<T>::max());
  Worst worst;
  for (const double size : {largest / 1e4, 1e4 / largest}) {
    for (const double offset : {-30.0, 0.0, 30.0}) {
      Problem<T> problem(base_case(MaskKind::kNone));
      shift_scores(problem, [&](Index i, Index) { return i % 3 == 0 ? offset : 0.0; });
      const View<T, 4> v = problem.v();
      for_each_index({v.size(1), v.size(2), v.size(3)}, [&](Index h, Index j, Index n) {
        v(0, h, j, n) = static_cast<T>(static_cast<double>(v(0, h, j, n)) * size);
      });
      const Expectation<T> expectation(problem);
      for_each_isa(1, [&](Context& context) {
        Result<T> result(problem);
        result.run_forward(problem, context);
        EXPECT_TRUE(expectation.holds_forward(result, size > 1 ? "large v" : "small v", worst));
      });
    }
  }
  worst.print("values");
}

TYPED_TEST(Range, ARowDoesNotSeeItsNeighbours) {
  using T = TypeParam;
  const Problem<T> plain(base_case(MaskKind::kNone));
  for (const double offset : {-300.0, 300.0, std::numeric_limits<double>::quiet_NaN()}) {
    Problem<T> moved(base_case(MaskKind::kNone));
    shift_scores(moved, [&](Index i, Index j) { return i % 5 == 2 && j > 150 ? offset : 0.0; });
    for_each_isa(1, [&](Context& context) {
      Result<T> before(plain), after(moved);
      before.run_forward(plain, context);
      after.run_forward(moved, context);
      for (Index i = 0; i < 75; ++i) {
        for (Index n = 0; i % 5 != 2 && n < 17; ++n) {
          ASSERT_EQ(before.out.view(0, 1, i, n), after.out.view(0, 1, i, n)) << "row " << i << " offset " << offset;
        }
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
