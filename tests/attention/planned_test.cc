// A plan that is run again gives the bits of attention_forward, from the numbers that its tensors and options hold at
// each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "qkv/qkv.h"
#include "support/errors.h"

namespace qkv::test {
namespace {

template <class T> std::vector<T> numbers(const Tensor<T>& tensor) {
  return {tensor.data(), tensor.data() + tensor.count()};
}

TEST(Plans, ReadTensorsMasksTablesAndCapturesAnew) {
  const Index tokens = 70;
  Tensor<float> q({1, 2, tokens, 8}), out(q.sizes()), again(q.sizes()), table({5, 2});
  for (Index n = 0; n < q.count(); ++n) q.data()[n] = std::sin(static_cast<float>(n));
  Tensor<std::uint8_t> keep({1, 1, tokens, tokens});
  std::fill_n(keep.data(), keep.count(), std::uint8_t{1});
  const Capture what{.column_mass = true};
  CaptureResult found, seen_again;
  AttentionOptions options{
      .mask = Mask::keep(keep), .position_bias = PositionBias::relative(table), .capture = {what, seen_again}};
  Plan plan = plan_attention(q, q, q, {.out = again}, options);
  options.capture = {what, found};
  std::vector<std::vector<float>> results;
  const auto run = [&] {
    plan.forward();
    attention_forward(q, q, q, {.out = out}, options);
    EXPECT_EQ(numbers(again), numbers(out));
    EXPECT_EQ(numbers(seen_again.column_mass), numbers(found.column_mass));
    results.push_back(numbers(out));
  };
  run();
  q.data()[5] = 2;
  run();
  std::fill_n(keep.data() + 3 * tokens, 66, std::uint8_t{0});
  run();
  for (Index n = 0; n < table.count(); ++n) table.data()[n] = static_cast<float>(n);
  run();
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[1], results[2]);
  EXPECT_NE(results[2], results[3]);
}

TEST(Plans, AreCheckedWhenTheyAreMade) {
  Tensor<float> q({1, 2, 3, 4}), v({1, 2, 5, 4}), out({1, 2, 3, 4});
  expect_parts(text_of<ShapeError>([&] { (void)plan_attention(q, q, v, {.out = out}); }), {"[plan_attention]", "5"});
  expect_parts(
      text_of<OptionError>([&] { (void)plan_attention(q, q, q, {}); }), {"[plan_attention]", "at least one output"});
  expect_parts(text_of<ShapeError>([&] { (void)plan_attention(q, q, q, {.out = q}); }), {"[plan_attention]", "out"});
}

TEST(Plans, MoveAndKeepTheirOptions) {
  const Tensor<float> q({1, 1, 4, 4});
  Tensor<float> out(q.sizes());
  Plan<float> plan = [&] {
    const AttentionOptions options{.mask = Mask::causal(), .score_mod = nullptr};
    return plan_attention(q, q, q, {.out = out}, options);
  }();
  Plan<float> moved = std::move(plan);
  moved.forward();
  EXPECT_EQ(out.data()[0], 0.0F);
}

}  // namespace
}  // namespace qkv::test
