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

/// A sink far above the first keys leaves the later ones their weights.
TYPED_TEST(Range, ASinkAboveTheFirstKeys) {
  Worst worst;
  AttentionCase each = base_case(MaskKind::kNone);
  each.kv_len = 20;  // few keys are shifted by the first one's score
  each.sinks = SinkKind::kUniform;
  Problem<TypeParam> problem(each);
  shift_scores(problem, [](Index, Index j) { return j < 10 ? -100 : -70; });
  expect_within_bounds(problem, problem.c.name(), worst);
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
    // One that climbs leaves the quick softmax after its sums have overflowed.
    for (const auto& [offset, step] : {std::pair(-30.0, 0.0), {0.0, 0.0}, {30.0, 0.0}, {0.0, 24.0}}) {
      Problem<T> problem(base_case(MaskKind::kNone));
      shift_scores(problem, [from = offset, by = step](Index i, Index j) {
        return i % 3 == 0 ? from + by * static_cast<double>(j / 137) : 0;
      });
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

/// A row whose keys all have one score takes the mean, and its gradients are the mean's, whatever the score: that of a
/// padded query may be any fill. An lse of such a size and its rounding error say nothing of how many keys there are.
TYPED_TEST(Range, OneScoreForAllKeysIsTheMean) {
  using T = TypeParam;
  constexpr Index keys = 300, width = 5;
  constexpr T lowest = std::numeric_limits<T>::lowest();
  Random random(8);
  Tensor<T> q({1, 1, 1, width}), k({1, 1, keys, width}), v({1, 1, keys, width}), dout({1, 1, 1, width}),
      bias({1, 1, 1, keys});
  for (Tensor<T>* each : {&k, &v, &dout}) {
    for (T& x : each->span()) x = static_cast<T>(random.symmetric());
  }
  q.data()[0] = 1;  // so that dk is not 0; k has 0 there, so that all scores are one
  for (Index j = 0; j < keys; ++j) k.data()[j * width] = 0;
  for_each_isa(1, [&](Context& context) {
    const auto gradients = [&](T fill) {
      std::ranges::fill(bias.span(), fill);
      Tensor<T> out({1, 1, 1, width}), lse({1, 1, 1}), low({1, 1, 1});
      std::array made{Tensor<T>({1, 1, 1, width}), Tensor<T>(k.sizes()), Tensor<T>(v.sizes())};
      const AttentionOptions options{.bias = bias};
      attention_forward(q, k, v, {.out = out, .lse = lse, .lse_low = low}, options, context);
      attention_backward(
          q, k, v, out, lse, dout, {.dq = made[0], .dk = made[1], .dv = made[2], .lse_low = low}, options, context);
      return made;
    };
    const auto expected = gradients(0);
    for (const double fill :
        {-1e4, -1e9, -1e11, -1e20, 1e30, static_cast<double>(lowest / 4), static_cast<double>(lowest)}) {
      const auto found = gradients(static_cast<T>(fill));
      for (std::size_t n = 0; n < 3; ++n) {
        for (Index i = 0; i < found[n].count(); ++i) {
          EXPECT_NEAR(found[n].data()[i], expected[n].data()[i], 64 * std::numeric_limits<T>::epsilon())
              << "dq dk dv"[3 * n + 1] << " at " << i << " of scores " << fill;
        }
      }
    }
  });
}

/// Of keys in two parts, each part is given lse of all of them: its gradients are right but for that one's rounding,
/// which shifts every weight of the row alike, as long as lse still says how many keys there are (semantics.md).
TYPED_TEST(Range, OneScoreForAllKeysInTwoParts) {
  using T = TypeParam;
  constexpr Index keys = 300, cut = 170, width = 5;
  Random random(9);
  Tensor<T> q({1, 1, 1, width}), k({1, 1, keys, width}), v(k.sizes()), dout(q.sizes()), bias({1, 1, 1, keys});
  for (Tensor<T>* each : {&k, &v, &dout}) {
    for (T& x : each->span()) x = static_cast<T>(random.symmetric());
  }
  q.data()[0] = 1;
  for (Index j = 0; j < keys; ++j) k.data()[j * width] = 0;
  for_each_isa(1, [&](Context& context) {
    const auto gradients = [&](T fill, Index middle, T* lse_of_all) {
      std::ranges::fill(bias.span(), fill);
      Tensor<T> out(q.sizes()), lse({1, 1, 1});
      attention_forward(q, k, v, {.out = out, .lse = lse}, {.bias = bias}, context);
      *lse_of_all = lse.data()[0];
      std::array made{Tensor<T>(q.sizes()), Tensor<T>(k.sizes()), Tensor<T>(v.sizes())};
      for (const auto& [begin, end] : {std::pair<Index, Index>(0, middle), {middle, keys}}) {
        const auto part = [&](Tensor<T>& x) { return View<T, 4>(x).sliced(2, begin, end); };
        Tensor<T> dq(q.sizes()), own_bias({1, 1, 1, end - begin});
        std::ranges::fill(own_bias.span(), fill);
        attention_backward(q, part(k), part(v), out, lse, dout, {.dq = dq, .dk = part(made[1]), .dv = part(made[2])},
            {.bias = own_bias}, context);
        for (Index d = 0; d < width; ++d) made[0].data()[d] += dq.data()[d];
      }
      return made;
    };
    T lse = 0;
    const auto expected = gradients(0, keys, &lse);
    for (const T size : {T{1e3}, sizeof(T) == 4 ? T{1e5} : static_cast<T>(1e14)}) {
      for (const T fill : {-size, size}) {
        const auto found = gradients(fill, cut, &lse);
        const double shift = std::nextafter(std::abs(lse), std::numeric_limits<T>::infinity()) - std::abs(lse);
        for (std::size_t n = 0; n < 3; ++n) {
          for (Index i = 0; i < found[n].count(); ++i) {
            const double wanted = expected[n].data()[i];
            EXPECT_NEAR(found[n].data()[i], wanted,
                std::expm1(shift / 2) * std::abs(wanted) + 64 * std::numeric_limits<T>::epsilon())
                << "dq dk dv"[3 * n + 1] << " at " << i << " of scores " << fill;
          }
        }
      }
    }
  });
}

/// A key that every query lists, as a sink is, gets a sum over all of them: in two levels, each of so many roundings.
TYPED_TEST(Range, AKeyListedByManyQueriesKeepsItsDigits) {
  using T = TypeParam;
  constexpr Index many = 400000;
  constexpr double eps = std::numeric_limits<T>::epsilon();
  Tensor<T> q({1, 1, many, 1}), k({1, 1, 64, 1}), out({1, 1, many, 1}), lse({1, 1, many}), dout({1, 1, many, 1}),
      dv({1, 1, 64, 1});
  const Tensor<std::int32_t> lists({1, 1, many, 1});
  std::ranges::fill(dout.span(), static_cast<T>(0.1));
  const AttentionOptions options{.mask = Mask::keys(lists)};
  attention_backward(q, k, k, out, lse, dout, {.dv = dv}, options);
  const double exact = static_cast<double>(static_cast<T>(0.1)) * many;
  EXPECT_NEAR(dv.data()[0], exact, exact * eps * (2048 + many / 2048.0) / 2);
}

/// What a row without keys takes, of many keys and for many queries: ones stay ones, and dout of ones adds up.
TYPED_TEST(Range, TheMeanOfManyKeysIsOne) {
  using T = TypeParam;
  constexpr double eps = std::numeric_limits<T>::epsilon();
  constexpr Index many = 200000;
  const std::vector<Index> none{0};
  for (const double p : {0.0, 0.5}) {
    AttentionOptions options{.mask = Mask::key_lengths(none), .empty_row = EmptyRow::kMean};
    options.dropout = {.p = p, .seed = 3, .training = p > 0};
    const auto run = [&](Index queries, Index keys) {
      Tensor<T> q({1, 1, queries, 1}), k({1, 1, keys, 1}), v({1, 1, keys, 1}), out({1, 1, queries, 1}),
          lse({1, 1, queries});
      Tensor<T> dv({1, 1, keys, 1});
      std::ranges::fill(v.span(), T{1});
      attention_forward(q, k, v, {.out = out, .lse = lse}, options);
      std::ranges::fill(q.span(), T{1});
      attention_backward(q, k, v, out, lse, q, {.dv = dv}, options);
      return std::pair(std::move(out), std::move(dv));
    };
    const double deviation = 6 * std::sqrt(p / (1 - p) / static_cast<double>(many));  // of the mean of what is kept
    EXPECT_NEAR(run(1, many).first.data()[0], 1, 2 * eps + deviation);
    const Tensor<T> dv = run(many, 2).second;
    EXPECT_NEAR(dv.data()[0] / (many / 2.0), 1, 2 * eps + deviation);
  }
}

}  // namespace
}  // namespace qkv::test
