// A capture's bits: those of the weights, and beside any output. Its errors. Threads, batches and what else is captured:
// relations_test.cc, the form captured.
#include <gtest/gtest.h>

#include "dispatch/kernels.h"
#include "support/checks/check_capture.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T>
class CaptureBits : public testing::Test {};
TYPED_TEST_SUITE(CaptureBits, StorageTypes);

/// Longer than a tile of queries and than several chunks, so that many items add to the same sums.
AttentionCase long_case(MaskKind mask) {
  return {.batch = 2,
          .num_heads = 2,
          .num_kv_heads = 1,
          .q_len = 390,
          .kv_len = 700,
          .head_dim = 20,
          .v_head_dim = 12,
          .mask = mask,
          .dropout = 0.2,
          .empty_row = EmptyRow::kMean};
}

void expect_same(const CaptureResult& a, const CaptureResult& b) {
  const auto all_a = numbers_of(a), all_b = numbers_of(b);
  for (std::size_t n = 0; n < all_a.size(); ++n) EXPECT_TRUE(same_bits(*all_a[n], *all_b[n])) << "number " << n;
  EXPECT_TRUE(same_bits(a.top_weights, b.top_weights)) << "top_weights";
  EXPECT_TRUE(same_bits(a.top_keys, b.top_keys)) << "top_keys";
  EXPECT_TRUE(same_bits(a.statistics.max_key, b.statistics.max_key)) << "max_key";
  EXPECT_TRUE(same_bits(a.statistics.sink, b.statistics.sink)) << "sink";
}

/// Captured rows are those of the weights, also for decode, whose out comes from other kernels.
TYPED_TEST(CaptureBits, RowsAreTheWeights) {
  using T = TypeParam;
  AttentionCase few = long_case(MaskKind::kNone);
  few.q_len = 2;
  for (const AttentionCase& each : {long_case(MaskKind::kWindow), few}) {
    const Problem<T> problem(each);
    for_each_isa(2, [&](Context& context) {
      Result<T> result(problem);
      result.run_weights(problem, context);
      Capture look{.heads = {1}};
      for (Index i = 0; i < each.q_len; ++i) look.rows.push_back(i);
      CaptureResult seen;
      forward_with(problem, result, look, seen, context);
      const View<const Accumulator<T>, 4> weights = result.weights;
      const View<const double, 4> rows = seen.rows;
      const bool pairs = has_bf16_products(context.isa()) && std::is_same_v<T, BFloat16>;  // their sums have another order
      for_each_index({each.batch, each.q_len, pairs ? 0 : each.kv_len}, [&](Index b, Index i, Index j) {
        ASSERT_EQ(rows(b, 0, i, j), static_cast<double>(weights(b, 1, i, j))) << b << " " << i << " " << j;
      });
    });
  }
}

TYPED_TEST(CaptureBits, AttentionWeightsSeeTheSame) {
  using T = TypeParam;
  const Problem<T> problem(long_case(MaskKind::kCausalBottomRight));
  for_each_isa(2, [&](Context& context) {
    const Capture look = look_of(problem.c);
    CaptureResult forward, weights;
    Result<T> result(problem);
    forward_with(problem, result, look, forward, context);
    AttentionOptions options = problem.options;
    options.capture = {look, weights};
    attention_forward(problem.q(), problem.k(), {}, {.weights = result.weights}, options, context);
    const bool pairs = has_bf16_products(context.isa()) && std::is_same_v<T, BFloat16>;
    if (!pairs) expect_same(weights, forward);
  });
}

TEST(CaptureErrors, NameWhatIsWrongAndLeaveResultsAlone) {
  const Tensor<float> q({2, 3, 5, 4}), k({2, 3, 7, 4}), v({2, 3, 7, 4});
  Tensor<float> out({2, 3, 5, 4}), lse({2, 3, 5});
  const auto expect_error = [&](const Capture& look, const std::string& text) {
    CaptureResult seen;
    seen.rows = Tensor<double>({1});
    seen.rows.data()[0] = 42;
    try {
      attention_forward(q, k, v, {.out = out, .lse = lse}, {.capture = {look, seen}});
      attention_backward(q, k, v, out, lse, out, {}, {.capture = {look, seen}});
      FAIL() << "no error: " << text;
    } catch (const OptionError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(seen.rows.data()[0], 42);
  };
  expect_error({.heads = {3}}, "capture.heads must be at least 0 and below 3: got 3");
  expect_error({.heads = {1, 0, 1}}, "capture.heads must name each once: got 1 twice");
  expect_error({.rows = {-1}}, "capture.rows must be at least 0 and below 5: got -1");
  expect_error({.top_k = -2}, "capture.top_k must not be negative: got -2");
  expect_error({.map_rows = 4}, "both be positive, or both 0: got 4 x 0");
  expect_error({.column_mass = true, .offsets = {1}}, "one for each of 2 sequences: got 1");
  expect_error({.statistics = true, .of = CaptureOf::kGradient}, "in forward");
}

TEST(CaptureErrors, TheOtherDirectionIsLeftAlone) {
  const Tensor<float> q({1, 1, 5, 4});
  Tensor<float> out({1, 1, 5, 4}), lse({1, 1, 5}), dq({1, 1, 5, 4});
  const Capture look{.top_k = 1, .of = CaptureOf::kGradient};
  CaptureResult seen;
  attention_forward(q, q, q, {.out = out, .lse = lse}, {.capture = {look, seen}});
  EXPECT_EQ(seen.top_weights.rank(), 0);
  attention_backward(q, q, q, out, lse, q, {.dq = dq}, {.capture = {look, seen}});
  EXPECT_EQ(seen.top_weights.count(), 5);
}

}  // namespace
}  // namespace qkv::test
