// NaN, infinity and the largest finite numbers: what each may reach, and nothing else. Where exactly NaN appears is
// asked of the reference, which leaves pairs that are not kept out of every sum.
#include <gtest/gtest.h>

#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class Nonfinite : public testing::Test {};
TYPED_TEST_SUITE(Nonfinite, StorageTypes);

/// Every element is NaN in both or in neither.
template <class T, class C>
testing::AssertionResult same_nans(const Tensor<T>& got, const Tensor<C>& wanted, const std::string& what) {
  for (Index n = 0; n < got.count(); ++n) {
    if (std::isnan(got.data()[n]) == std::isnan(wanted.data()[n])) continue;
    return testing::AssertionFailure() << what << " " << got.shape() << " at flat index " << n << ": expected "
                                       << static_cast<double>(wanted.data()[n]) << ", got " << got.data()[n];
  }
  return testing::AssertionSuccess();
}

/// A NaN in one row of q, k, v or dout. Rows of masks: causal, some empty, whole strips of queries without a key
/// between others; few queries.
TYPED_TEST(Nonfinite, NanReachesWhatTheReferenceSays) {
  using T = TypeParam;
  Tensor<std::uint8_t> gap({1, 1, 140, 140});  // queries 16..111 see none of the first 70 keys; query 3 sees nothing
  for (Index i = 0; i < 140; ++i) {
    for (Index j = 0; j < 140; ++j) gap.data()[i * 140 + j] = i != 3 && (i < 16 || i >= 112 || j >= 70);
  }
  const auto in_gap = [&gap](Index, Index, Index i, Index j) { return gap.data()[i * 140 + j] != 0; };
  const AttentionCase square{.q_len = 140, .kv_len = 140, .head_dim = 20, .v_head_dim = 9};
  AttentionCase causal = square, few = square;
  causal.mask = MaskKind::kCausal;
  few.q_len = 4, few.kv_len = 1100, few.num_heads = 4, few.num_kv_heads = 2, few.mask = MaskKind::kCausalBottomRight;
  for (const AttentionCase& each : {square, causal, few}) {
    const bool dense = each.mask == MaskKind::kNone;
    for (int part = 0; part < 4; ++part) {
      for (const Index third : {0, 1, 2}) {
        const Index length = part == 0 || part == 3 ? each.q_len : each.kv_len;
        const Index row = third == 0 ? std::min<Index>(3, length / 3) : third == 1 ? length / 3 : length - 1;
        Problem<T> problem(each);
        if (dense) {
          problem.mask.keep = in_gap;
          problem.options.mask = Mask::keep(View<const std::uint8_t, 4>(gap));
        }
        const View<T, 4> poisoned[] = {problem.q(), problem.k(), problem.v(), problem.dout.view};
        poisoned[part](0, 0, row, 5) = kQuietNan<T>;
        const auto input = problem.template reference_input<double>();
        const auto forward = input.forward();
        const auto backward = input.backward();
        const std::string name = each.name() + ", part " + std::to_string(part) + ", row " + std::to_string(row);
        for_each_isa(2, [&](Context& context) {
          Result<T> result(problem);
          result.run(problem, context);
          EXPECT_TRUE(same_nans(copy_as<Accumulator<T>>(result.out.view), forward.out, name + ", out"));
          EXPECT_TRUE(same_nans(result.weights, forward.weights, name + ", weights"));
          attention_forward(problem.q(), problem.k(), problem.v(), {.out = result.out.view, .weights = result.weights},
              problem.options, context);
          EXPECT_TRUE(same_nans(result.weights, forward.weights, name + ", weights beside out"));
          EXPECT_TRUE(same_nans(copy_as<Accumulator<T>>(result.gradients.views[0]), backward.dq, name + ", dq"));
          EXPECT_TRUE(same_nans(copy_as<Accumulator<T>>(result.gradients.views[1]), backward.dk, name + ", dk"));
          EXPECT_TRUE(same_nans(copy_as<Accumulator<T>>(result.gradients.views[2]), backward.dv, name + ", dv"));
        });
      }
    }
  }
}

/// The lowest finite number is not -inf: a row filled with it takes the mean, as in every other system.
TYPED_TEST(Nonfinite, TheLowestFiniteBiasKeeps) {
  using T = TypeParam;
  Problem<T> problem({.q_len = 40, .kv_len = 70, .head_dim = 8, .v_head_dim = 8, .bias = BiasKind::kFull});
  for (Index i = 0; i < 40; ++i) {
    for (Index j = 0; j < 70; ++j) {
      if (i % 2 == 0 || j % 3 == 0) problem.bias(0, 0, i, j) = std::numeric_limits<Accumulator<T>>::lowest();
      if (i == 4 && j != 6) problem.bias(0, 0, i, j) = -std::numeric_limits<Accumulator<T>>::infinity();
    }
  }
  for_each_isa(1, [&](Context& context) {
    Result<T> result(problem);
    result.run(problem, context);
    result.run_weights(problem, context);
    for (Index i = 0; i < 40; ++i) {
      for (Index j = 0; j < 70; ++j) {
        const auto weight = static_cast<double>(result.weights.data()[i * 70 + j]);
        if (i % 2 == 0) {
          EXPECT_NEAR(weight, i == 4 ? j == 6 : 1.0 / 70, 1e-7) << i << ", " << j;
        } else if (j % 3 == 0) {
          EXPECT_EQ(weight, 0) << i << ", " << j;
        }
      }
    }
    for (const View<T, 4>& view : result.gradients.views) {
      const Tensor<double> gradient = copy_as<double>(view);  // named: the loop's span must not outlive it
      for (const double x : gradient.span()) ASSERT_TRUE(std::isfinite(x));
    }
    // dv of one row's mean: every key receives dout / 70 from each even row but the fourth
    EXPECT_GT(std::abs(number_as<double>(result.gradients.views[2](0, 0, 3, 0))), 0);
  });
}

/// Weights of a row whose lse is +inf are exp(s - inf) = 0, and so are its gradients.
/// A query that a mask hides from a key gives it no NaN, also where its lse is finite: a sink's, or that of capped
/// scores.
TYPED_TEST(Nonfinite, AHiddenQueryReachesNoKey) {
  using T = TypeParam;
  for (const bool sink : {true, false}) {
    AttentionCase each{.q_len = 40, .kv_len = 40, .head_dim = 9, .v_head_dim = 5, .mask = MaskKind::kCausal};
    if (sink) each.sinks = SinkKind::kUniform;
    if (!sink) each.softcap = 2;
    Problem<T> problem(each);
    std::vector<std::uint8_t> keep(40 * 40, 1);
    for (Index i = 20; i < 23; ++i)
      std::fill_n(keep.data() + i * 40 + (sink ? 0 : 10), sink ? 40 : 30, std::uint8_t{0});
    problem.options.mask = Mask::keep(View<const std::uint8_t, 2>(keep.data(), {40, 40}), MaskAxes::kQk);
    for_each_isa(1, [&](Context& context) {
      Result<T> result(problem);
      for (Index i = 20; i < 23; ++i) {
        for (Index d = 0; d < 9; ++d) problem.q()(0, 0, i, d) = number_as<T>(sink ? std::nan("") : HUGE_VAL);
      }
      result.run(problem, context);
      const View<T, 4> dk = result.gradients.views[1];
      for (Index j = sink ? 0 : 10; j < 40; ++j) {
        for (Index d = 0; d < 9; ++d) ASSERT_TRUE(std::isfinite(number_as<double>(dk(0, 0, j, d)))) << j;
      }
    });
  }
}

/// Scores that q.k makes -inf leave all of a row to its sink: weights and out 0, lse the sink; without one, NaN.
TYPED_TEST(Nonfinite, ASinkTakesARowOfMinusInfinity) {
  using T = TypeParam;
  for (const Index q_len : {1, 40}) {
    for (const bool sink : {true, false}) {
      AttentionCase each{1, 2, 2, q_len, 70, 9, 5};
      if (sink) each.sinks = SinkKind::kUniform;
      Problem<T> problem(each);
      for (Index d = 0; d < 9; ++d) problem.q()(0, 1, 0, d) = number_as<T>(d == 0 ? -HUGE_VAL : 0);
      for (Index j = 0; j < 70; ++j) problem.k()(0, 1, j, 0) = number_as<T>(1 + static_cast<double>(j));
      const auto expected = problem.template reference_input<double>().forward();
      EXPECT_EQ(std::isnan(expected.out.data()[q_len * 5]), !sink);
      for_each_isa(1, [&](Context& context) {
        Result<T> result(problem);
        result.run_forward(problem, context);
        EXPECT_TRUE(same_nans(copy_as<Accumulator<T>>(result.out.view), expected.out, "out"));
        EXPECT_TRUE(same_nans(result.lse, expected.lse, "lse"));
        result.run_weights(problem, context);
        EXPECT_TRUE(same_nans(result.weights, expected.weights, "weights"));
        for (Index d = 0; d < 5 && sink; ++d) EXPECT_EQ(number_as<double>(result.out.view(0, 1, 0, d)), 0);
        for (Index j = 0; j < 70 && sink; ++j) EXPECT_EQ(result.weights.data()[q_len * 70 + j], 0);
      });
    }
  }
}

TYPED_TEST(Nonfinite, AnInfiniteLseGivesTheRowNoGradient) {
  using T = TypeParam;
  const Problem<T> problem({.q_len = 20, .kv_len = 20, .head_dim = 8, .v_head_dim = 8});
  for_each_isa(1, [&](Context& context) {
    Result<T> result(problem);
    result.run_forward(problem, context);
    result.lse.data()[3] = std::numeric_limits<Accumulator<T>>::infinity();
    result.run_backward(problem, context);
    for (Index d = 0; d < 8; ++d) {
      EXPECT_EQ(number_as<double>(result.gradients.views[0](0, 0, 3, d)), 0);
      EXPECT_TRUE(std::isfinite(number_as<double>(result.gradients.views[1](0, 0, 5, d))));
    }
  });
}

/// A row that may attend keys is not empty because all its scores are -inf: -inf - -inf is NaN, whatever the fill.
TYPED_TEST(Nonfinite, KeptScoresOfMinusInfinityAreNotAnEmptyRow) {
  using T = TypeParam;
  for (const bool masked : {false, true}) {
    Problem<T> problem({.q_len = 20, .kv_len = 20, .head_dim = 1, .v_head_dim = 8, .empty_row = EmptyRow::kMean});
    Tensor<std::uint8_t> keep({1, 1, 20, 20});
    for (Index n = 0; n < keep.count(); ++n)
      keep.data()[n] = n / 20 != 2 && n % 20 != 7;  // query 2 is empty, key 7 masked
    if (masked) problem.options.mask = Mask::keep(View<const std::uint8_t, 4>(keep));
    for (Index i = 0; i < 20; ++i) problem.q()(0, 0, i, 0) = number_as<T>(i % 2 == 0 ? 1.0 : -1.0);
    for (Index j = 0; j < 20; ++j) problem.k()(0, 0, j, 0) = number_as<T>(-HUGE_VAL);
    for_each_isa(1, [&](Context& context) {
      Result<T> result(problem);
      result.run_forward(problem, context);
      result.run_weights(problem, context);
      for (Index i = 0; i < 20; ++i) {
        const bool empty = masked && i == 2;
        EXPECT_EQ(std::isnan(result.lse.data()[i]), !empty) << i;
        EXPECT_EQ(std::isnan(number_as<double>(result.out.view(0, 0, i, 0))), !empty) << i;
        EXPECT_EQ(std::isnan(result.weights.data()[i * 20]), !empty) << i;
      }
    });
  }
}

TYPED_TEST(Nonfinite, MergeKeepsANanRow) {
  using T = Accumulator<TypeParam>;
  Tensor<T> nan_out({1, 1, 1, 2}), nan_lse({1, 1, 1}), none_out({1, 1, 1, 2}), none_lse({1, 1, 1}), out({1, 1, 1, 2}),
      lse({1, 1, 1});
  for (Tensor<T>* tensor : {&nan_out, &nan_lse}) std::ranges::fill(tensor->span(), kQuietNan<T>);
  none_lse.data()[0] = -std::numeric_limits<T>::infinity();
  const std::array<View<const T, 4>, 2> outs = {none_out, nan_out};
  const std::array<View<const T, 3>, 2> lses = {none_lse, nan_lse};
  merge_attention(outs, lses, out, lse);
  EXPECT_TRUE(std::isnan(out.data()[0]));
  EXPECT_TRUE(std::isnan(lse.data()[0])) << "-inf would make the row an empty one";
}

}  // namespace
}  // namespace qkv::test
