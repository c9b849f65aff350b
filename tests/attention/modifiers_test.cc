// Sinks, position biases and callbacks against what they must equal: none, a dense bias; and callbacks that throw.
// Their values against the oracle are in the list of cases (cases_test.cc), against PyTorch in python/tests.

#include <array>
#include <atomic>
#include <stdexcept>

#include "core/threads/region.h"
#include "core/threads/turns.h"
#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class Modifiers : public testing::Test {};
TYPED_TEST_SUITE(Modifiers, StorageTypes);

AttentionCase small_case(Index q_len, Index kv_len) { return {2, 4, 2, q_len, kv_len, 24, 17}; }

/// out, lse, weights, dq, dk, dv.
template <class T> void expect_same_but_tables(const Result<T>& a, const Result<T>& b) {
  EXPECT_TRUE(same_bits(copy_as<T>(a.out.view), copy_as<T>(b.out.view))) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << "weights";
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(same_bits(copy_as<T>(a.gradients.views[n]), copy_as<T>(b.gradients.views[n]))) << "gradient " << n;
  }
}

TYPED_TEST(Modifiers, APositionBiasIsADenseBiasInBits) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  for (const auto& [q_len, kv_len] : {std::pair<Index, Index>{150, 150}, {70, 300}, {300, 70}, {2, 700}}) {
    for (const PositionKind kind :
        {PositionKind::kAlibi, PositionKind::kT5, PositionKind::kT5OneSided, PositionKind::kRelative}) {
      AttentionCase each = small_case(q_len, kv_len);
      each.position = kind;
      each.seed = static_cast<std::uint64_t>(kind);
      SCOPED_TRACE(each.name());
      const Problem<T> problem(each);
      Problem<T> dense(each);
      const Align align = problem.options.position_bias.align();
      const Index offset = align == Align::kBottomRight ? kv_len - q_len : 0;
      dense.bias_memory = Tensor<Sum>({1, 4, q_len, kv_len});
      dense.bias = dense.bias_memory;
      for_each_index({4, q_len, kv_len}, [&](Index h, Index i, Index j) {
        const Index d = j - i - offset;
        dense.bias(0, h, i, j) =
            static_cast<Sum>(position_factor(kind, d) *
                             static_cast<double>(problem.position_table.data()[position_row(kind, d) * 4 + h]));
      });
      dense.options.position_bias = {};
      dense.options.bias = dense.bias;
      dense.position_table = {};
      for_each_isa(2, [&](Context& context) {
        Result<T> by_distance(problem), in_full(dense);
        by_distance.run(problem, context);
        in_full.run(dense, context);
        expect_same_but_tables(by_distance, in_full);
      });
    }
  }
}

TYPED_TEST(Modifiers, ASinkOfMinusInfinityIsNone) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  for (const Index q_len : {2, 140}) {
    AttentionCase each = small_case(q_len, 200);
    each.mask = MaskKind::kKeepDense;
    Problem<T> problem(each);
    Tensor<Sum> none({4});
    for (Sum& x : none.span()) x = -std::numeric_limits<Sum>::infinity();
    for_each_isa(2, [&](Context& context) {
      Result<T> without(problem), with(problem);
      without.run(problem, context);
      problem.options.sinks = none;
      with.run(problem, context);
      problem.options.sinks = {};
      expect_same_but_tables(with, without);
    });
  }
}

/// All weight is the sink's where no key is kept or there is none, of a sink of any size.
TEST(Modifiers, TheGradientOfASinkAlone) {
  const std::vector<Index> none{0};
  constexpr float most = std::numeric_limits<float>::max();
  for (const float value : {0.0F, 20.3F, -101.7F, 1234.5F, 1e5F, 1e6F, -1e7F, -1e30F, 2.3e38F, -most, most})
    for (const Index keys : {0, 2}) {
      Tensor<float> q({1, 1, 1, 4}), k({1, 1, keys, 4}), out({1, 1, 1, 4}), lse({1, 1, 1}), dlse({1, 1, 1}), sinks({1}),
          dsinks({1});
      sinks.data()[0] = value, dlse.data()[0] = 3;
      const AttentionOptions options{.mask = Mask::key_lengths(none), .sinks = sinks};
      attention_forward(q, k, k, {.out = out, .lse = lse}, options);
      attention_backward(q, k, k, out, lse, out, {.dsinks = dsinks, .dlse = dlse}, options);
      EXPECT_EQ(dsinks.data()[0], 3) << "sink " << value << ", keys " << keys;
    }
}

TYPED_TEST(Modifiers, ACallbackSeesEachPairThatIsThere) {
  using T = TypeParam;
  for (const Index q_len : {2, 77}) {
    const Problem<T> problem(small_case(q_len, 150));
    AttentionOptions options = problem.options;
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(2 * 4 * q_len * 150));
    options.score_mod = score_mod([&](auto s, Index b, Index h, Index i, Index j) {
      if (b < 0 || b >= 2 || h < 0 || h >= 4 || i < 0 || i >= q_len || j < 0 || j >= 150) std::abort();
      ++calls[static_cast<std::size_t>(((b * 4 + h) * q_len + i) * 150 + j)];
      return s;
    });
    for_each_isa(3, [&](Context& context) {
      for (std::atomic<int>& count : calls) count = 0;
      Result<T> result(problem);
      attention_forward(
          problem.q(), problem.k(), problem.v(), {.out = result.out.view, .lse = result.lse}, options, context);
      for (const std::atomic<int>& count : calls) ASSERT_GE(count.load(), 1);
    });
  }
}

/// Many threads, many items that wait for each other's turn, or a decode; one pair that throws.
TYPED_TEST(Modifiers, WhatACallbackThrowsReachesTheCaller) {
  using T = TypeParam;
  for (const auto& [q_len, kv_len] : {std::array<Index, 2>{300, 1100}, {1, 3000}}) {
    AttentionCase each = small_case(q_len, kv_len);
    if (q_len > 1) each.bias = BiasKind::kKeys;  // its gradient is shared by items
    if (q_len > 1) each.position = PositionKind::kRelative;
    std::atomic<bool> throws{false};
    Problem<T> problem(each);
    const auto value = [&throws, row = q_len / 3, column = kv_len - 400](auto s, Index b, Index h, Index i, Index j) {
      if (throws && b == 1 && h == 2 && i == row && j == column) throw std::runtime_error("that pair");
      return s;
    };
    problem.options.score_mod = score_mod(value, [](auto, Index, Index, Index, Index) { return 1; });
    for_each_isa(8, [&](Context& context) {
      Result<T> before(problem), result(problem);
      throws = false;
      before.run(problem, context);
      for (int repeat = 0; repeat < 2; ++repeat) {
        throws = true;
        EXPECT_THROW(result.run_forward(problem, context), std::runtime_error);
        EXPECT_THROW(result.run_weights(problem, context), std::runtime_error);
        throws = false;
        result.run_forward(problem, context);
        throws = true;
        try {
          result.run_backward(problem, context);
          ADD_FAILURE() << "backward threw nothing";
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "that pair");
        }
      }
      throws = false;
      result.run(problem, context);  // nothing is left of it
      expect_same_but_tables(result, before);
      if (q_len > 1) {
        EXPECT_TRUE(same_bits(result.dposition, before.dposition));
      }
    });
  }
}

/// What a callback threw in an item that then waited in vain is not thrown by a later call.
TEST(Modifiers, AnItemThatWaitsInVainKeepsNoError) {
  Context context({.threads = 4, .isa = std::nullopt, .executor = nullptr});
  context.impl().region_flops = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Turn turn{0};
    const auto body = [&turn](Index item, int) {
      guard_callback([] { throw std::runtime_error("callback"); });
      if (item > 0) wait_for_turn(turn, item);
    };
    EXPECT_THROW(parallel_for_flops(context, 40, 1, body), std::runtime_error);
    EXPECT_NO_THROW(parallel_for_flops(context, 400, 1, [](Index, int) {}));
  }
}

/// An item that throws before it passes its turn: those behind it must not wait for ever.
TEST(Modifiers, AFailedTurnIsNotWaitedFor) {
  Context context({.threads = 4, .isa = std::nullopt, .executor = nullptr});
  for (int repeat = 0; repeat < 50; ++repeat) {
    Turn turn{0};
    EXPECT_THROW(context.parallel_for(40,
                     [&](Index item, int) {
                       wait_for_turn(turn, item);
                       if (item == 3) throw std::runtime_error("item 3");
                       pass_turn(turn, item);
                     }),
        std::runtime_error);
    EXPECT_EQ(turn.load(), 3);
  }
}

TEST(Modifiers, SlopesOfAlibi) {
  const std::vector<double> eight = alibi_slopes(8);
  for (std::size_t h = 0; h < 8; ++h) EXPECT_EQ(eight[h], std::ldexp(1.0, -static_cast<int>(h) - 1));
  const std::vector<double> twelve = alibi_slopes(12), sixteen = alibi_slopes(16);
  ASSERT_EQ(twelve.size(), 12u);
  for (std::size_t h = 0; h < 8; ++h) EXPECT_EQ(twelve[h], eight[h]);
  for (std::size_t h = 8; h < 12; ++h) EXPECT_EQ(twelve[h], sixteen[2 * (h - 8)]);
  EXPECT_TRUE(alibi_slopes(0).empty());
  EXPECT_EQ(alibi_slopes(1), std::vector<double>{0.00390625});
}

/// A slope beyond float is the largest float, as a bias is: it hides no key.
TEST(PositionBias, SlopesBeyondFloatHideNothing) {
  const Tensor<float> q({1, 1, 3, 4});
  Tensor<float> out({1, 1, 3, 4}), lse({1, 1, 3});
  Tensor<float> v({1, 1, 2, 4});
  std::ranges::fill(v.span(), 1.0F);
  const Tensor<float> k({1, 1, 2, 4});
  for_each_isa(1, [&](Context& context) {  // the first query stands before every key
    attention_forward(q, k, v, {.out = out, .lse = lse},
        {.position_bias = PositionBias::alibi({1e39}, Align::kBottomRight)}, context);
    for (const float x : out.span()) EXPECT_EQ(x, 1.0F);
  });
}

TEST(Modifiers, BucketsOfT5) {
  for (const bool bidirectional : {true, false}) {
    const T5Buckets buckets{.num_buckets = 32, .max_distance = 128, .bidirectional = bidirectional};
    const Index exact = bidirectional ? 8 : 16, side = bidirectional ? 16 : 32;
    for (Index d = 0; d < exact; ++d) EXPECT_EQ(t5_bucket(-d, buckets), d);
    Index last = 0;
    for (Index d = 0; d < 300; ++d) {
      const Index bucket = t5_bucket(-d, buckets);
      EXPECT_TRUE(bucket == last || bucket == last + 1) << d;
      EXPECT_EQ(t5_bucket(d, buckets), bidirectional ? (d == 0 ? 0 : side + bucket) : 0);
      last = bucket;
    }
    EXPECT_EQ(last, side - 1);
    EXPECT_EQ(t5_bucket(-127, buckets), side - 1);
    EXPECT_EQ(t5_bucket(std::numeric_limits<Index>::min(), buckets), side - 1);
  }
}

}  // namespace
}  // namespace qkv::test
