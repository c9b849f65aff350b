// Plans of calls on caches and of ragged batches: tiles, flops and work are those of the sequences alone, bytes are
// those that a call takes.
#include <gtest/gtest.h>

#include "qkv/qkv.h"
#include "support/cases/ragged.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

constexpr Index kHeads = 4, kKvHeads = 2, kDim = 16;

Mask two_windows() {
  return Mask::causal(Align::kBottomRight) & (Mask::window(40, 0, Align::kBottomRight) | Mask::first(3));
}

/// The numbers of a plan that add up over sequences.
struct Work {
  Index items = 0, full = 0, partial = 0, skipped = 0;
  double forward_flops = 0, backward_flops = 0;

  void add(const AttentionPlan& plan) {
    items += plan.work_items;
    full += plan.full_tiles;
    partial += plan.partial_tiles;
    skipped += plan.skipped_tiles;
    forward_flops += plan.forward_flops;
    backward_flops += plan.backward_flops;
  }
  bool operator==(const Work&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Work& work) {
  return out << work.items << " items, " << work.full << " full, " << work.partial << " partial, " << work.skipped
             << " skipped, " << work.forward_flops << " + " << work.backward_flops << " flops";
}

/// One sequence without cache or batch.
AttentionPlan plan_alone(Index q_len, Index kv_len, const Mask& mask, Context& context) {
  const Tensor<float> q({1, kHeads, q_len, kDim}), k({1, kKvHeads, kv_len, kDim});
  return attention_plan(q, k, k, {.mask = mask}, context);
}

TEST(Plan, OfACacheCountsEachSequence) {
  const std::vector<Index> lengths{300, 64, 1000};
  for_each_isa(2, [&](Context& context) {
    for (const Index q_len : {2, 50}) {
      const Tensor<float> q({3, kHeads, q_len, kDim}), k({3, kKvHeads, 1000, kDim});
      const KeyValue kv = KeyValue::contiguous(k, k, lengths);
      const AttentionPlan plan = attention_plan(q, kv, {.mask = two_windows()}, context);
      EXPECT_EQ(plan.algorithm, q_len == 2 ? "decode" : "tiled");
      Work got, expected;
      got.add(plan);
      for (const Index length : lengths) expected.add(plan_alone(q_len, length, two_windows(), context));
      expected.backward_flops = 0;
      // Every sequence has as many parts of the keys as the longest.
      if (q_len == 2) expected.items = 3 * plan_alone(q_len, 1000, {}, context).work_items;
      EXPECT_EQ(got, expected);
      EXPECT_GT(plan.skipped_tiles, 0);
      EXPECT_EQ(plan.backward_scratch_bytes + plan.backward_shared_bytes, 0U);
    }
  });
}

TEST(Plan, OfARingAddsItsWindow) {
  KVCache ring(
      {.num_kv_heads = kKvHeads, .head_dim = kDim, .layout = CacheLayout::kRing, .window = 130, .max_append = 40});
  const Tensor<float> more({1, kKvHeads, 40, kDim});
  for (int n = 0; n < 20; ++n) ring.append(more, more);
  for_each_isa(1, [&](Context& context) {
    const Tensor<float> q({1, kHeads, 40, kDim});
    Work got, expected;
    got.add(attention_plan(q, ring.key_value(), {}, context));
    expected.add(plan_alone(40, 800, Mask::window(129, -1, Align::kBottomRight), context));
    expected.backward_flops = 0;
    EXPECT_EQ(got, expected);
  });
}

TEST(Plan, OfACacheSaysItsBytes) {
  for (const CacheStorage storage : {CacheStorage::kF32, CacheStorage::kBF16, CacheStorage::kInt8}) {
    KVCache cache({.num_kv_heads = kKvHeads, .head_dim = kDim, .storage = storage, .capacity = 3000});
    const Tensor<float> k({1, kKvHeads, 3000, kDim});
    cache.append(k, k);
    for_each_isa(3, [&](Context& context) {
      for (const Index q_len : {1, 200}) {
        const Tensor<float> q({1, kHeads, q_len, kDim});
        Tensor<float> out(q.sizes()), lse({1, kHeads, q_len});
        const AttentionPlan plan = attention_plan(q, cache.key_value(), {}, context);
        context.trim();
        attention_forward(q, cache.key_value(), {.out = out, .lse = lse}, {}, context);
        EXPECT_EQ(context.scratch_bytes(), 3 * plan.forward_scratch_bytes + plan.forward_shared_bytes);
      }
    });
  }
}

TEST(Plan, OfACacheRefusesWhatTheCallRefuses) {
  const Tensor<float> q({1, kHeads, 3, kDim}), k({1, kKvHeads, 70, kDim});
  const KeyValue kv = KeyValue::contiguous(k, k);
  EXPECT_THROW(attention_plan(q, kv, {.empty_row = EmptyRow::kMean}), UnsupportedError);
  EXPECT_THROW(attention_plan(q, kv, {.mask = Mask::causal()}), OptionError);
}

using Lengths = std::vector<RaggedLengths>;
const Lengths kTiled{{70, 200}, {0, 30}, {33, 0}, {300, 700}}, kFew{{1, 900}, {8, 64}, {2, 3000}},
    kMixed{{1, 900}, {70, 200}, {3, 20}, {8, 500}};

template <class T> Ragged<T> ragged(const Lengths& lengths) {
  return Ragged<T>({.name = "", .lengths = lengths, .head_dim = kDim, .v_head_dim = kDim});
}
template <class T> AttentionPlan plan_of(const Ragged<T>& r, const AttentionOptions& options, Context& context) {
  return attention_varlen_plan(View<const T, 3>(r.q.view), r.k.view, r.v.view, r.offsets(), options, context);
}

TEST(Plan, OfARaggedBatchIsThatOfItsSequences) {
  for_each_isa(2, [](Context& context) {
    for (const auto& [lengths, algorithm] : {std::pair{kTiled, "tiled"}, {kFew, "decode"}, {kMixed, "tiled and decode"},
             {Lengths{{0, 5}, {4, 0}}, "none"}}) {
      SCOPED_TRACE(algorithm);
      const AttentionPlan plan = plan_of(ragged<float>(lengths), {.mask = two_windows()}, context);
      EXPECT_EQ(plan.algorithm, algorithm);
      Work got, expected;
      got.add(plan);
      for (const auto& [q_len, kv_len] : lengths) expected.add(plan_alone(q_len, kv_len, two_windows(), context));
      EXPECT_EQ(got, expected);
      const AttentionPlan alone = plan_alone(lengths[0].q, lengths[0].kv, two_windows(), context);
      if (plan.algorithm == "tiled") {
        EXPECT_EQ(plan.key_tile, alone.key_tile);
      }
    }
  });
}

template <class T> class RaggedPlan : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(RaggedPlan, Types);

TYPED_TEST(RaggedPlan, SaysItsBytes) {
  for_each_isa(3, [](Context& context) {
    for (const auto& lengths : {kTiled, kFew, kMixed}) {
      const Ragged<TypeParam> r = ragged<TypeParam>(lengths);
      Tensor<Accumulator<TypeParam>> lse({r.total_q(), kHeads}), bias({1, kHeads, 1, 1}), dbias(bias.sizes());
      const AttentionOptions options{.bias = bias};
      const AttentionPlan plan = plan_of(r, options, context);
      context.trim();
      attention_varlen_forward(
          r.q.view, r.k.view, r.v.view, {.out = r.out.view, .lse = lse}, r.offsets(), options, context);
      EXPECT_EQ(context.scratch_bytes(), 3 * plan.forward_scratch_bytes + plan.forward_shared_bytes);
      context.trim();
      attention_varlen_backward(r.q.view, r.k.view, r.v.view, r.out.view, lse, r.dout.view,
          {.dq = r.dq.view, .dk = r.dk.view, .dv = r.dv.view, .dbias = dbias}, r.offsets(), options, context);
      EXPECT_EQ(context.scratch_bytes(), 3 * plan.backward_scratch_bytes + plan.backward_shared_bytes);
    }
  });
}

TEST(Plan, OfListsAndOfGroupedRowsIsWhatRuns) {
  for_each_isa(3, [](Context& context) {
    const Tensor<float> q({1, 1, 256, kDim}), k({1, 1, 4096, kDim});
    Tensor<float> out(q.sizes());
    Tensor<std::int32_t> index({1, 1, 256, 16});
    for (Index n = 0; n < index.count(); ++n) index.data()[n] = static_cast<std::int32_t>(n % 16 * 7);
    const AttentionOptions lists{.mask = Mask::keys(index)};
    const AttentionPlan listed = attention_plan(q, k, k, lists, context);
    EXPECT_EQ(listed.algorithm, "lists");
    EXPECT_EQ(listed.work_items, 256);
    EXPECT_EQ(listed.query_tile, 1);
    EXPECT_EQ(listed.forward_flops, 256.0 * 16 * 2 * 2 * kDim);
    context.trim();
    attention_forward(q, k, k, {.out = out}, lists, context);
    EXPECT_EQ(context.scratch_bytes(), 3 * listed.forward_scratch_bytes + listed.forward_shared_bytes);

    const Tensor<float> one({1, 8, 1, kDim}), two({1, 2, 4096, kDim});
    const AttentionOptions invariant{.bits = Bits::kInvariant};
    EXPECT_EQ(attention_plan(one, two, two, invariant, context).work_items, 2)
        << "an item for the heads of each key/value head";
  });
}

}  // namespace
}  // namespace qkv::test
