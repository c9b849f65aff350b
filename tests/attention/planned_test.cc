// A plan that is run again gives the bits of attention_forward, from the numbers that its tensors and options hold at each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "qkv/qkv.h"
#include "support/checks/expect.h"
#include "support/errors.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T>
class Planned : public testing::Test {};
TYPED_TEST_SUITE(Planned, StorageTypes);

template <class T>
std::vector<T> numbers(const Tensor<T>& tensor) {
  return {tensor.data(), tensor.data() + tensor.count()};
}

/// Bytes, so that NaN equals itself.
template <class T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

TYPED_TEST(Planned, EachRunIsACallOfItsOwn) {
  using T = TypeParam;
  for (AttentionCase each : pairwise_cases(2e5)) {
    if (each.cache != CacheKind::kNone) continue;
    const Problem<T> problem(each);
    const View<T, 4> q = problem.q();
    if (q.count() == 0) continue;
    for_each_isa(2, [&](Context& context) {
      Tensor<T> out({each.batch, each.num_heads, each.q_len, each.v_head_dim}), planned(out.sizes());
      Tensor<Accumulator<T>> lse({each.batch, each.num_heads, each.q_len}), planned_lse(lse.sizes());
      T& first = *const_cast<T*>(q.data());
      const T before = first;
      Plan plan = plan_attention(q, problem.k(), problem.v(), {.out = planned, .lse = planned_lse}, problem.options, context);
      for (const T number : {static_cast<T>(2.0F), before}) {
        first = number;
        plan.forward();
        attention_forward(q, problem.k(), problem.v(), {.out = out, .lse = lse}, problem.options, context);
        ASSERT_TRUE(same_bits(numbers(planned), numbers(out))) << each.name();
        ASSERT_TRUE(same_bits(numbers(planned_lse), numbers(lse))) << each.name();
      }
    });
  }
}

TEST(Plans, ReadMasksTablesAndCapturesAnew) {
  const Index tokens = 70;
  Tensor<float> q({1, 2, tokens, 8}), out(q.sizes()), again(q.sizes()), table({5, 2});
  for (Index n = 0; n < q.count(); ++n) q.data()[n] = std::sin(static_cast<float>(n));
  Tensor<std::uint8_t> keep({1, 1, tokens, tokens});
  std::fill_n(keep.data(), keep.count(), std::uint8_t{1});
  const Capture look{.column_mass = true};
  CaptureResult seen, seen_again;
  AttentionOptions options{
      .mask = Mask::keep(keep), .position_bias = PositionBias::relative(table), .capture = {look, seen_again}};
  Plan plan = plan_attention(q, q, q, {.out = again}, options);
  options.capture = {look, seen};
  std::vector<std::vector<float>> results;
  const auto run = [&] {
    plan.forward();
    attention_forward(q, q, q, {.out = out}, options);
    EXPECT_TRUE(same_bits(numbers(again), numbers(out)));
    EXPECT_TRUE(same_bits(numbers(seen_again.column_mass), numbers(seen.column_mass)));
    results.push_back(numbers(out));
  };
  run();
  std::fill_n(keep.data() + 3 * tokens, 66, std::uint8_t{0});
  run();
  for (Index n = 0; n < table.count(); ++n) table.data()[n] = static_cast<float>(n);
  run();
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[1], results[2]);
}

TEST(Plans, AreCheckedWhenTheyAreMade) {
  Tensor<float> q({1, 2, 3, 4}), v({1, 2, 5, 4}), out({1, 2, 3, 4});
  expect_parts(text_of<ShapeError>([&] { (void)plan_attention(q, q, v, {.out = out}); }), {"[plan_attention]", "5"});
  expect_parts(text_of<OptionError>([&] { (void)plan_attention(q, q, q, {}); }), {"[plan_attention]", "at least one output"});
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
