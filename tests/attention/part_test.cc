// Refused parts of a larger problem (AttentionOptions::part), and what a mask may keep of a part. Their
// bits: relations_test.cc, the forms rows and heads.
#include <gtest/gtest.h>

#include <limits>

#include "qkv/varlen.h"
#include "support/errors.h"
#include "support/problem.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

TEST(ProblemPart, ListsThatDoNotFitAreRefused) {
  Tensor<float> q({1, 2, 2, 4}), k({1, 1, 2, 4}), out({1, 2, 2, 4});
  Tensor<std::int32_t> two({1, 1, 2, 1}), four({1, 1, 4, 1});
  const auto call = [&](const View<const std::int32_t, 4>& index, const detail::Part& part) {
    attention_forward(q, k, k, {.out = out}, {.mask = Mask::keys(index), .part = part});
  };
  EXPECT_THROW(call(two, {.queries = 4}), ShapeError) << "two rows are listed, four would be there";
  call(four, {.queries = 4, .first_head = 2, .heads = 4});
  expect_parts(text_of<ShapeError>([&] { call(four, {.queries = 4, .first_head = 1, .heads = 4}); }),
      {"[attention_forward] part", "first_head must be a multiple of 2", "got 1"});
}

// Also where the rows are computed among others of their strip.
TEST(ProblemPart, CapturesAreRefusedAndWriteNothing) {
  for (const Index length : {8, 64}) {
    const Tensor<float> q({1, 1, 5, 4}), k({1, 1, length, 4}), row({1, 1, 5});
    Tensor<float> out(q.sizes()), dq(q.sizes());
    const Capture statistics{.statistics = true}, gradient{.top_k = 1, .of = CaptureOf::kGradient};
    CaptureResult result;
    AttentionOptions options{.part = {3, length}};
    options.capture = {statistics, result};
    EXPECT_THROW(attention_forward(q, k, k, {.out = out}, options), UnsupportedError) << length;
    options.capture = {gradient, result};
    EXPECT_THROW(attention_backward(q, k, k, out, row, out, {.dq = dq}, options), UnsupportedError) << length;
    EXPECT_TRUE(result.statistics.entropy.sizes().empty() && result.top_weights.sizes().empty());
  }
}

// A negative scale: the part's rows are computed in a tile with all others.
TEST(ProblemPart, TheGradientOfABiasIsZeroInOtherRows) {
  const Tensor<float> q = random_tensor<float>({1, 1, 40, 8}, 1), k = random_tensor<float>({1, 1, 3, 8}, 2);
  const Tensor<float> dout = random_tensor<float>(q.sizes(), 3), bias = random_tensor<float>({1, 1, 40, 3}, 4);
  Tensor<float> out(q.sizes()), lse({1, 1, 40}), dbias(bias.sizes());
  AttentionOptions options{.bias = bias, .scale = -1};
  attention_forward(q, k, k, {.out = out, .lse = lse}, options);
  for (const Index rows : {8, 40}) {
    SCOPED_TRACE(rows);
    const auto own = [&](const auto& whole) { return whole.sliced(2, 0, rows); };
    options.part = {0, 40};
    std::fill_n(dbias.data(), dbias.count(), std::numeric_limits<float>::quiet_NaN());
    attention_backward(own(View<const float, 4>(q)), k, k, own(View<const float, 4>(out)),
        own(View<const float, 3>(lse)), own(View<const float, 4>(dout)), {.dbias = dbias}, options);
    for (Index i = 0; i < 40; ++i) EXPECT_EQ(dbias.data()[3 * i] != 0, i < rows) << i;
  }
}

TEST(ProblemPart, WhatAMaskMayKeepHoldsAllThatItKeeps) {
  int promises = 0;
  for (const AttentionCase& each : pairwise_cases()) {
    if (each.bias != BiasKind::kNone && each.bias != BiasKind::kHeads) continue;
    SCOPED_TRACE(each.name());
    const Problem<float> problem(each);
    for (Index i = 0; i < each.q_len; i += 40) {
      for (Index j = 0; j < each.kv_len; j += 30) {
        const Index i_end = std::min(i + 40, each.q_len), j_end = std::min(j + 30, each.kv_len);
        if (mask_may_keep(
                problem.options.mask, {each.batch, each.num_heads, each.q_len, each.kv_len}, i, i_end, j, j_end))
          continue;
        ++promises;
        for (Index b = 0; b < each.batch; ++b)
          for (Index h = 0; h < each.num_heads; ++h)
            for (Index row = i; row < i_end; ++row)
              for (Index key = j; key < j_end; ++key) ASSERT_FALSE(problem.kept(b, h, row, key));
      }
    }
  }
  EXPECT_GT(promises, 100);
}

TEST(ProblemPart, WhatDoesNotFitIsRefusedByName) {
  Tensor<float> q({1, 2, 40, 8}), k({1, 1, 40, 8}), out(q.sizes());
  const auto call = [&](const detail::Part& part, CaptureRequest capture = {}) {
    attention_forward(q, k, k, {.out = out}, {.capture = capture, .part = part});
  };
  expect_parts(
      text_of<ShapeError>([&] { call({.first_query = 1}); }), {"[attention_forward] part", "first_query 1", "Tq 40"});
  expect_parts(text_of<ShapeError>([&] { call({.first_query = 10, .queries = 49}); }), {"queries 49"});
  expect_parts(text_of<ShapeError>([&] { call({.first_head = 3, .heads = 4}); }), {"first_head 3", "heads 4"});
  CaptureResult found;
  const Capture what{.statistics = true};
  expect_parts(
      text_of<UnsupportedError>([&] { call({.queries = 80}, CaptureRequest(what, found)); }), {"part", "capture"});
  const std::vector<Index> offsets{0, 40};
  Tensor<float> rows({40, 2, 8}), keys({40, 1, 8}), result({40, 2, 8});
  expect_parts(text_of<UnsupportedError>([&] {
    attention_varlen_forward(rows, keys, keys, {.out = result}, {offsets, offsets}, {.part = {.queries = 80}});
  }),
      {"[attention_varlen_forward] part", "ragged"});
}

}  // namespace
}  // namespace qkv::test
