// Relevance maps (weights times gradient, only what is above 0, the mean over heads): held against the same made by
// plain loops from the whole rows of a capture without them. Not: whether those are right (capture_test.cc).
#include <gtest/gtest.h>

#include <numeric>

#include "support/checks/check_capture.h"

namespace qkv::test {
namespace {

template <class T> class Relevance : public testing::Test {};
TYPED_TEST_SUITE(Relevance, StorageTypes);

/// More than two items of queries, and chunks of keys, of which some are masked.
AttentionCase relevance_case(MaskKind mask, std::uint64_t seed) {
  return {.batch = 2,
      .num_heads = 4,
      .num_kv_heads = 2,
      .q_len = 45,
      .kv_len = 131,
      .head_dim = 12,
      .v_head_dim = 7,
      .mask = mask,
      .dropout = seed % 2 == 0 ? 0.3 : 0.0,
      .seed = seed};
}

/// The entries [B, results, Tq, Tk] of a relevance map, from those of every head.
Tensor<double> changed(const Tensor<double>& entries, const Capture& what) {
  Tensor<double> all = entries.clone();
  for (double& x : all.span()) {
    if (what.positive && x < 0) x = 0;
  }
  if (!what.mean_of_heads) return all;
  const View<const double, 4> from = all;
  Tensor<double> mean({from.size(0), 1, from.size(2), from.size(3)});
  const View<double, 4> to = mean;
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index i = 0; i < from.size(2); ++i) {
      for (Index j = 0; j < from.size(3); ++j) {
        for (Index h = 0; h < from.size(1); ++h) to(b, 0, i, j) += from(b, h, i, j);
        to(b, 0, i, j) /= static_cast<double>(from.size(1));
      }
    }
  }
  return mean;
}

/// Compares `seen` with loops over the entries [B, results, Tq, Tk]; sums of at most 45 x 131 doubles in another order.
void expect_of(const Tensor<double>& entries, const Capture& what, const CaptureResult& found) {
  const View<const double, 4> e = entries, rows = found.rows, map = found.map, top = found.top_weights;
  const View<const Index, 4> keys = found.top_keys;
  const View<const double, 3> columns = found.column_mass;
  const Index q_len = e.size(2), kv_len = e.size(3);
  ASSERT_EQ(rows.size(1), e.size(1));
  for (Index b = 0; b < e.size(0); ++b) {
    for (Index h = 0; h < e.size(1); ++h) {
      std::vector<double> column(static_cast<std::size_t>(kv_len)),
          cell(static_cast<std::size_t>(what.map_rows * what.map_columns));
      double size = 0;
      for (Index i = 0; i < q_len; ++i) {
        std::vector<Index> order;
        for (Index j = 0; j < kv_len; ++j) {
          column[static_cast<std::size_t>(j)] += e(b, h, i, j);
          cell[static_cast<std::size_t>(
              i * what.map_rows / q_len * what.map_columns + j * what.map_columns / kv_len)] += e(b, h, i, j);
          size += std::abs(e(b, h, i, j));
          if (e(b, h, i, j) != 0) order.push_back(j);
        }
        std::ranges::stable_sort(order, [&](Index x, Index y) { return e(b, h, i, x) > e(b, h, i, y); });
        for (Index n = 0; n < what.top_k; ++n) {
          const bool there = n < std::ssize(order);
          const Index key = there ? order[static_cast<std::size_t>(n)] : -1;
          ASSERT_EQ(keys(b, h, i, n), key) << "query " << i;
          ASSERT_EQ(top(b, h, i, n), there ? e(b, h, i, key) : 0) << "query " << i;
        }
      }
      for (std::size_t n = 0; n < what.rows.size(); ++n) {
        for (Index j = 0; j < kv_len; ++j) ASSERT_EQ(rows(b, h, static_cast<Index>(n), j), e(b, h, what.rows[n], j));
      }
      const double near = 45 * 131 * std::numeric_limits<double>::epsilon() * size;
      for (Index j = 0; j < kv_len; ++j) ASSERT_NEAR(columns(b, h, j), column[static_cast<std::size_t>(j)], near);
      for (Index n = 0; n < std::ssize(cell); ++n) {
        ASSERT_NEAR(map(b, h, n / what.map_columns, n % what.map_columns), cell[static_cast<std::size_t>(n)], near);
      }
    }
  }
}

TYPED_TEST(Relevance, IsMadeFromTheRowsOfEveryHead) {
  std::uint64_t seed = 0;
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausalBottomRight, MaskKind::kKeepDense}) {
    const Problem<TypeParam> problem(relevance_case(mask, ++seed));
    for_each_isa(2, [&](Context& context) {
      Result<TypeParam> result(problem);
      result.run_forward(problem, context);
      for (const auto& [positive, mean] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
        Capture what{.rows = {44, 0, 17}, .top_k = 5, .column_mass = true, .map_rows = 4, .map_columns = 9};
        if (seed != 2) what.heads = {3, 1, 0};
        what.of = CaptureOf::kGradient;
        Capture plain = with_all_rows(problem, what);
        what.positive = positive;
        what.mean_of_heads = mean;
        CaptureResult entries, found;
        backward_with(problem, result, plain, entries, context);
        const Tensor<TypeParam> dq = copy_as<TypeParam>(result.gradients.views[0]);
        backward_with(problem, result, what, found, context);
        EXPECT_TRUE(same_bits(copy_as<TypeParam>(result.gradients.views[0]), dq)) << "looking changed the answer";
        expect_of(changed(entries.rows, what), what, found);
      }
    });
  }
}

TYPED_TEST(Relevance, HasTheSameBitsForAnyNumberOfThreads) {
  const Problem<TypeParam> problem(relevance_case(MaskKind::kCausalBottomRight, 2));
  Capture what{
      .rows = {3}, .top_k = 3, .column_mass = true, .map_rows = 5, .map_columns = 7, .of = CaptureOf::kGradient};
  what.positive = what.mean_of_heads = true;
  CaptureResult one;
  for (const int threads : {1, 2, 5}) {
    Context context({.threads = threads, .isa = {}, .executor = nullptr});
    context.impl().region_flops = 0;  // regions even for little work
    Result<TypeParam> result(problem);
    result.run_forward(problem, context);
    CaptureResult found;
    backward_with(problem, result, what, found, context);
    if (threads == 1) {
      one = std::move(found);
      continue;
    }
    for (const auto member :
        {&CaptureResult::rows, &CaptureResult::top_weights, &CaptureResult::map, &CaptureResult::column_mass}) {
      EXPECT_TRUE(same_bits(found.*member, one.*member));
    }
    EXPECT_TRUE(same_bits(found.top_keys, one.top_keys));
  }
}

TEST(RelevanceErrors, OfWeightsItIsRefused) {
  const Tensor<float> q({1, 2, 3, 4});
  Tensor<float> out({1, 2, 3, 4}), lse({1, 2, 3});
  CaptureResult found;
  Capture positive{.top_k = 1}, mean{.top_k = 1};
  positive.positive = mean.mean_of_heads = true;
  EXPECT_THROW(attention_forward(q, q, q, {.out = out, .lse = lse}, {.capture = {positive, found}}), UnsupportedError);
  EXPECT_THROW(attention_forward(q, q, q, {.out = out, .lse = lse}, {.capture = {mean, found}}), UnsupportedError);
}

}  // namespace
}  // namespace qkv::test
