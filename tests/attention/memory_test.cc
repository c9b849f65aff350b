// Memory beyond inputs and outputs: at most 2 MiB per thread forward, three more numbers per row backward, at any
// length; and nothing allocated after the first call of a shape.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "qkv/derivatives.h"
#include "qkv/qkv.h"
#include "support/allocations.h"
#include "support/forms/relations.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> struct Tensors {
  Tensor<T> q, k, v, out, dout, dq, dk, dv;
  Tensor<Accumulator<T>> lse;
  Tensors(Index heads, Index length, Index width)
      : q({1, heads, length, width}),
        k(q.sizes()),
        v(q.sizes()),
        out(q.sizes()),
        dout(q.sizes()),
        dq(q.sizes()),
        dk(q.sizes()),
        dv(q.sizes()),
        lse({1, heads, length}) {
    Index n = 0;
    for (Tensor<T>* t : {&q, &k, &v, &dout}) {
      for (T& x : t->span()) x = T(static_cast<float>(n++ % 17) / 17 - 0.5F);
    }
  }

  void forward(const AttentionOptions& options, Context& context) {
    attention_forward(q, k, v, {.out = out, .lse = lse}, options, context);
  }
  void backward(const AttentionOptions& options, Context& context) {
    attention_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, options, context);
  }
  AttentionPlan plan(const AttentionOptions& options, Context& context) const {
    return attention_plan(q, k, v, options, context);
  }
};

constexpr std::size_t kThreadBytes = std::size_t{2} << 20;

TEST(Memory, StaysSmallAtLength65536) {
  constexpr Index length = 65536;
  Tensors<float> t(1, length, 128);
  Context context({.threads = 2});
  const AttentionOptions options{.mask = Mask::causal() & Mask::sliding(300)};
  t.forward(options, context);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes);
  context.trim();
  EXPECT_EQ(context.scratch_bytes(), 0U);
  t.backward(options, context);
  const std::size_t rows = 3 * sizeof(float) * length + 65536;  // delta, lse in two parts; turns
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes + rows);
}

template <class T> class Scratch : public testing::Test {};
TYPED_TEST_SUITE(Scratch, StorageTypes);

/// The memory of backward, by its plan.
std::size_t backward_bytes(const AttentionPlan& plan) {
  return plan.backward_shared_bytes + static_cast<std::size_t>(plan.threads) * plan.backward_scratch_bytes;
}

TYPED_TEST(Scratch, StaysSmallForWideHeads) {
  for_each_isa(1, [](Context& context) {
    for (const Index width : {512, 520, 640, 728, 768, 1000, 1024}) {
      for (const Index length : {60, 130}) {  // one range of keys, and more
        SCOPED_TRACE(testing::Message() << "width " << width << ", length " << length);
        Tensors<TypeParam> t(1, length, width);
        const AttentionPlan plan = t.plan({}, context);
        EXPECT_LE(plan.forward_scratch_bytes, kThreadBytes);
        EXPECT_LE(plan.backward_scratch_bytes, kThreadBytes);
        context.trim();
        t.forward({}, context);
        EXPECT_EQ(context.scratch_bytes(), plan.forward_scratch_bytes);
        context.trim();
        t.backward({}, context);
        EXPECT_EQ(context.scratch_bytes(), backward_bytes(plan));
      }
    }
  });
}

TYPED_TEST(Scratch, IsWhatThePlanSays) {
  for_each_isa(3, [](Context& context) {
    for (const Index length : {40, 700}) {
      SCOPED_TRACE(testing::Message() << "length " << length);
      Tensors<TypeParam> t(4, length, 64);
      const AttentionPlan plan = t.plan({}, context);
      context.trim();
      t.forward({}, context);
      EXPECT_EQ(context.scratch_bytes(), 3 * plan.forward_scratch_bytes);
      context.trim();
      t.backward({}, context);
      EXPECT_EQ(context.scratch_bytes(), backward_bytes(plan));
      // 16-bit types: one float dq per head in flight, if several ranges of keys add to it.
      const std::size_t rows = 3 * sizeof(Accumulator<TypeParam>) * 4 * static_cast<std::size_t>(length);
      const bool dq_is_shared = sizeof(TypeParam) == 2 && length == 700;
      const std::size_t dq = dq_is_shared ? 3 * sizeof(float) * 64 * static_cast<std::size_t>(length) : 0;
      EXPECT_GE(plan.backward_shared_bytes, rows + dq);
      EXPECT_LE(plan.backward_shared_bytes, rows + dq + 4096) << "turns are few";
    }
  });
}

TYPED_TEST(Scratch, OfABiasGradientToo) {
  for_each_isa(2, [](Context& context) {
    using Sum = Accumulator<TypeParam>;
    for (const Index bias_rows : {1, 300}) {
      Tensors<TypeParam> t(2, 300, 32);
      Tensor<Sum> bias({1, 1, bias_rows, 300}), dbias(bias.sizes());
      const AttentionOptions options{.bias = bias};
      t.forward(options, context);
      context.trim();
      attention_backward(t.q, t.k, t.v, t.out, t.lse, t.dout, {.dbias = dbias}, options, context);
      EXPECT_EQ(context.scratch_bytes(), backward_bytes(t.plan(options, context)));
    }
  });
}

/// jvp, then double backward with the same tangents; their values do not matter.
void second_order(Tensors<float>& t, const AttentionOptions& options, Context& context) {
  const AttentionTangents<float> tangents{.q = t.k, .k = t.v, .v = t.dout};
  attention_jvp(t.q, t.k, t.v, t.lse, tangents, t.dq, {}, options, context);
  attention_double_backward(
      t.q, t.k, t.v, t.out, t.lse, t.dout, tangents, {.gq = t.dq, .gk = t.dk, .gv = t.dv}, options, context);
}

TEST(Memory, OfSecondOrderIsFiveNumbersARow) {
  constexpr Index length = 65536;
  Tensors<float> t(1, length, 64);
  Context context({.threads = 2});
  const AttentionOptions options{.mask = Mask::causal() & Mask::sliding(200)};
  t.forward(options, context);
  context.trim();
  second_order(t, options, context);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes + 5 * sizeof(float) * length + 65536);
  expect_no_allocation_after_the_first(context, [&] { second_order(t, options, context); });
  for_each_isa(1, [](Context& one) {
    for (const Index width : {512, 768, 1024}) {
      Tensors<float> wide(1, 130, width);
      wide.forward({}, one);
      one.trim();
      second_order(wide, {}, one);
      EXPECT_LE(one.scratch_bytes(), kThreadBytes) << width;
    }
  });
}

TEST(Memory, OfAPositionBiasGrowsWithDistances) {
  constexpr Index length = 65536;
  Tensors<float> t(2, length, 64);
  Tensor<float> table({33, 2}), dtable(table.sizes());
  Context context({.threads = 2});
  const AttentionOptions options{.mask = Mask::causal() & Mask::sliding(200),
      .position_bias = PositionBias::relative(View<const float, 2>(table))};
  const std::size_t position = t.plan(options, context).position_bias_bytes;
  EXPECT_LE(position, 3 * sizeof(float) * (2 * length));  // two heads and the rows' numbers
  t.forward(options, context);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes + position);
  context.trim();
  attention_backward(t.q, t.k, t.v, t.out, t.lse, t.dout,
      {.dq = t.dq, .dk = t.dk, .dv = t.dv, .dposition_bias = dtable}, options, context);
  const std::size_t rows = 2 * (3 * sizeof(float) * length + 65536);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes + rows + position);
}

TEST(Memory, NothingIsAllocatedAfterTheFirstCall) {
  Tensors<float> t(4, 300, 64);
  const Tensor<float> sinks({4});
  const AttentionOptions plain{.mask = Mask::causal(), .dropout = {.p = 0.1, .seed = 1, .training = true}};
  const AttentionOptions modified{.mask = Mask::causal(),
      .sinks = sinks,
      .position_bias = PositionBias::alibi(alibi_slopes(4)),
      .score_mod = score_mod([](auto s, Index, Index, Index, Index) { return s / 2; },
          [](auto, Index, Index, Index, Index) { return 0.5; })};
  const Tensor<std::uint8_t> kept({300, 300});
  const AttentionOptions dense{.mask = Mask::drop(kept, MaskAxes::kQk)};
  for (const AttentionOptions* options : {&plain, &modified, &dense}) {
    Context context({.threads = 2});
    expect_no_allocation_after_the_first(context, [&] {
      t.forward(*options, context);
      t.backward(*options, context);
    });
  }
}

TEST(Memory, WeightsOfARaggedBatchAllocateNothingAfterTheFirstCall) {
  const std::vector<Index> q_offsets{0, 2, 80, 100}, kv_offsets{0, 900, 1100, 10100};
  const RaggedOffsets offsets{q_offsets, kv_offsets};
  Tensor<float> q({100, 2, 32}), k({10100, 1, 32}), out(q.sizes()), lse({100, 2}),
      weights({ragged_weights_count(offsets, 2)});
  Context context({.threads = 2});
  expect_no_allocation_after_the_first(context,
      [&] { attention_varlen_forward(q, k, k, {.out = out, .lse = lse, .weights = weights}, offsets, {}, context); });
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes);
}

/// One token more: append, a call, and now and then a fork that goes its own way.
TEST(Memory, ACacheAllocatesNothingAfterTheFirstCall) {
  for (const CacheStorage storage : {CacheStorage::kF32, CacheStorage::kInt8, CacheStorage::kInt4}) {
    KVCache cache({.num_kv_heads = 2,
        .head_dim = 64,
        .storage = storage,
        .layout = CacheLayout::kPaged,
        .sequences = 2,
        .max_sequences = 3,
        .page_size = 16,
        .pages = 60});
    const Tensor<float> prompt({2, 2, 100, 64}), rows({2, 2, 1, 64}), q({2, 4, 1, 64}), many({2, 4, 40, 64});
    Tensor<float> out({2, 4, 1, 64}), many_out({2, 4, 40, 64});
    Context context({.threads = 2});
    const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight)};
    cache.append(prompt, prompt);
    expect_no_allocation_after_the_first(context, [&] {
      const Index fork = cache.fork(0);
      cache.free(fork);
      cache.append(rows, rows);
      attention_forward(q, cache.key_value(), {.out = out}, options, context);
      attention_forward(many, cache.key_value(), {.out = many_out}, options, context);
      cache.truncate(1, cache.length(1) - 1);
    });
    EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes);
  }
}

TEST(Memory, AMergeAllocatesNothingAfterTheFirstCall) {
  Tensor<float> a({2, 4, 100, 32}), b(a.sizes()), out(a.sizes());
  Tensor<float> la({2, 4, 100}), lb(la.sizes()), lse(la.sizes());
  const std::array<View<const float, 4>, 2> outs = {a, b};
  const std::array<View<const float, 3>, 2> lses = {la, lb};
  for_each_isa(2, [&](Context& context) {
    expect_no_allocation_after_the_first(context, [&] { merge_attention(outs, lses, out, lse, context); });
  });
}

TEST(Memory, ALookAllocatesNothingAfterItsFirstCall) {
  Tensors<float> t(2, 300, 64);
  Context context({.threads = 2});
  const Capture what{.rows = {5}, .top_k = 4, .statistics = true, .column_mass = true, .map_rows = 8, .map_columns = 9};
  CaptureResult found;
  const AttentionOptions options{.mask = Mask::causal(), .capture = {what, found}};
  expect_no_allocation_after_the_first(context, [&] { t.forward(options, context); });
}

TEST(Memory, StatisticsTakeAFewRowsOfNumbersAtLength65536) {
  constexpr Index length = 65536;
  Tensors<float> t(1, length, 64);
  Context context({.threads = 2});
  const Capture what{.statistics = true};
  CaptureResult found;
  t.forward({.mask = Mask::causal() & Mask::sliding(300), .capture = {what, found}}, context);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes);
}

template <class T> void check_forms() {
  for (const Form<T>& form : forms<T>()) {
    SCOPED_TRACE(form.name);
    const std::vector<AttentionCase> cases = cases_of(form, relations<T>().front());
    for (std::size_t n = 0; n < cases.size(); n += all_cases() ? 40 : 8) {
      const Problem<T> problem(cases[n]);
      const auto outputs = [&](Context& context) {
        Result<T> result(problem);
        run_form(form, problem, result, kEverything, context);
        EXPECT_TRUE(result.sentinels_intact());
        if (form.more != nullptr) form.more(problem, ~0U, context);
        return outputs_of(result);
      };
      Context one({.threads = 1});
      const std::vector<Tensor<double>> expected = outputs(one);
      expect_only_bad_alloc(
          [&] {
            Context context({.threads = 3});
            context.impl().region_flops = 0;  // parallel regions, however small the work
            const std::vector<Tensor<double>> got = outputs(context);
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
          },
          {Refused::kAll});
    }
  }
}

TEST(Memory, OutAtAnyAllocationIsBadAllocAndNothingElse) {
  check_forms<float>();
  check_forms<BFloat16>();
}

}  // namespace
}  // namespace qkv::test
