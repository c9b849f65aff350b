// A capture's bits: those of the weights, and beside any output. Its errors. Threads, batches and what else is
// captured: relations_test.cc, the form captured.
#include <gtest/gtest.h>

#include "dispatch/kernels.h"
#include "support/cases/caches.h"
#include "support/checks/check_capture.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class CaptureBits : public testing::Test {};
TYPED_TEST_SUITE(CaptureBits, StorageTypes);

/// Longer than a tile of queries and than several chunks, so that many items add to the same sums.
AttentionCase long_case(MaskKind mask) {
  AttentionCase made{2, 2, 1, 390, 700, 20, 12, mask};
  made.dropout = 0.2, made.empty_row = EmptyRow::kMean;
  return made;
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
      Capture what{.heads = {1}};
      for (Index i = 0; i < each.q_len; ++i) what.rows.push_back(i);
      CaptureResult found;
      forward_with(problem, result, what, found, context);
      const View<const Accumulator<T>, 4> weights = result.weights;
      const View<const double, 4> rows = found.rows;
      // their sums have another order
      const bool pairs = has_bf16_products(context.isa()) && std::is_same_v<T, BFloat16>;
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
    const Capture what = capture_of(problem.c);
    CaptureResult forward, weights;
    Result<T> result(problem);
    forward_with(problem, result, what, forward, context);
    AttentionOptions options = problem.options;
    options.capture = {what, weights};
    attention_forward(problem.q(), problem.k(), {}, {.weights = result.weights}, options, context);
    const bool pairs = has_bf16_products(context.isa()) && std::is_same_v<T, BFloat16>;
    if (!pairs) expect_same(weights, forward);
  });
}

/// Keys in a cache, of sequences of different lengths: each is captured as it is alone, and has no weight beyond its
/// length.
TYPED_TEST(CaptureBits, OnACacheTheSame) {
  using T = TypeParam;
  AttentionCase each = long_case(MaskKind::kCausalBottomRight);
  each.dropout = 0;
  each.empty_row = EmptyRow::kNaN;
  const Problem<T> problem(each);
  const std::vector<Index> lengths{each.kv_len, 430};
  for (const CacheKind kind : {CacheKind::kContiguous, CacheKind::kPages16}) {
    SCOPED_TRACE(cache_name(kind));
    KVCache cache =
        empty_cache(kind, kStorageOf<T>, each.batch, each.num_kv_heads, each.head_dim, each.v_head_dim, each.kv_len);
    fill_cache(cache, problem.k(), problem.v(), lengths, each.seed);
    for_each_isa(2, [&](Context& context) {
      const Capture what{
          .rows = {3, 80}, .top_k = 5, .statistics = true, .column_mass = true, .map_rows = 4, .map_columns = 3};
      CaptureResult both;
      Result<T> result(problem);
      Tensor<Accumulator<T>> all({each.batch, each.num_heads, each.q_len, each.kv_len});
      AttentionOptions options = problem.options;
      options.capture = {what, both};
      attention_forward(problem.q(), cache.key_value(), {.out = result.out.view, .lse = result.lse, .weights = all},
          options, context);
      for (Index b = 0; b < each.batch; ++b) {
        CaptureResult one;
        options.capture = {what, one};
        const Index length = lengths[static_cast<std::size_t>(b)];
        const auto keys = [&](const auto& x) { return x.sliced(0, b, b + 1).sliced(2, 0, length); };
        Tensor<Accumulator<T>> weights({1, each.num_heads, each.q_len, length});
        attention_forward(problem.q().sliced(0, b, b + 1), keys(problem.k()), keys(problem.v()),
            {.out = result.out.view.sliced(0, b, b + 1), .weights = weights}, options, context);
        const auto part = [&](const auto& of_both, const auto& of_one) {
          const auto whole = of_both.span().subspan(static_cast<std::size_t>(b * of_one.count()), of_one.span().size());
          return std::ranges::equal(whole, of_one.span());
        };
        EXPECT_TRUE(
            part(both.top_weights, one.top_weights) && part(both.top_keys, one.top_keys) && part(both.map, one.map));
        EXPECT_TRUE(
            part(both.statistics.entropy, one.statistics.entropy) && part(both.statistics.self, one.statistics.self));
        EXPECT_TRUE(part(both.statistics.max_key, one.statistics.max_key));
        const auto same_keys = [&](const auto* whole, const auto* alone, Index rows) {
          for (Index row = 0; row < rows; ++row) {
            const auto* const of_row = whole + (b * rows + row) * each.kv_len;
            EXPECT_TRUE(std::equal(of_row, of_row + length, alone + row * length));
            EXPECT_TRUE(std::all_of(of_row + length, of_row + each.kv_len, [](auto x) { return x == 0; }));
          }
        };
        same_keys(both.rows.data(), one.rows.data(), each.num_heads * 2);
        same_keys(both.column_mass.data(), one.column_mass.data(), each.num_heads);
        same_keys(all.data(), weights.data(), each.num_heads * each.q_len);
      }
    });
  }
}

TEST(CaptureErrors, NameWhatIsWrongAndLeaveResultsAlone) {
  const Tensor<float> q({2, 3, 5, 4}), k({2, 3, 7, 4}), v({2, 3, 7, 4});
  Tensor<float> out({2, 3, 5, 4}), lse({2, 3, 5});
  const auto expect_error = [&](const Capture& what, const std::string& text) {
    CaptureResult found;
    found.rows = Tensor<double>({1});
    found.rows.data()[0] = 42;
    try {
      attention_forward(q, k, v, {.out = out, .lse = lse}, {.capture = {what, found}});
      attention_backward(q, k, v, out, lse, out, {}, {.capture = {what, found}});
      FAIL() << "no error: " << text;
    } catch (const OptionError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(found.rows.data()[0], 42);
  };
  expect_error({.heads = {3}}, "capture.heads must be at least 0 and below 3: got 3");
  expect_error({.heads = {1, 0, 1}}, "capture.heads must name each once: got 1 twice");
  expect_error({.rows = {-1}}, "capture.rows must be at least 0 and below 5: got -1");
  expect_error({.top_k = -2}, "capture.top_k must not be negative: got -2");
  expect_error({.map_rows = 4}, "both be positive, or both 0: got 4 x 0");
  expect_error({.column_mass = true, .offsets = {1}}, "one for each of 2 sequences: got 1");
  for (const Index offset : {Index{1} << 60, std::numeric_limits<Index>::min()})
    expect_error({.column_mass = true, .offsets = {0, offset}}, "below 2^60: got " + std::to_string(offset));
  expect_error({.statistics = true, .of = CaptureOf::kGradient}, "in forward");
}

TEST(CaptureErrors, TheOtherDirectionIsLeftAlone) {
  const Tensor<float> q({1, 1, 5, 4});
  Tensor<float> out({1, 1, 5, 4}), lse({1, 1, 5}), dq({1, 1, 5, 4});
  const Capture what{.top_k = 1, .of = CaptureOf::kGradient};
  CaptureResult found;
  attention_forward(q, q, q, {.out = out, .lse = lse}, {.capture = {what, found}});
  EXPECT_EQ(found.top_weights.rank(), 0);
  attention_backward(q, q, q, out, lse, q, {.dq = dq}, {.capture = {what, found}});
  EXPECT_EQ(found.top_weights.count(), 5);
}

}  // namespace
}  // namespace qkv::test
