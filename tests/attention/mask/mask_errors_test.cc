// Errors of masks, by themselves and for the sizes of a call: the type of each error and what its text names.
#include <gtest/gtest.h>

#include <limits>

#include "qkv/attention.h"
#include "support/errors.h"

namespace qkv::test {
namespace {

using Values = std::vector<Index>;
constexpr Index kLargest = std::numeric_limits<Index>::max();

template <class E, class F> void expect_error(F&& call, std::initializer_list<std::string_view> parts) {
  expect_parts(text_of<E>(call), parts);
}

TEST(MaskErrors, NumbersThatCanNeverBeRight) {
  expect_error<OptionError>([] { Mask::first(-1); }, {"[Mask::first]", "-1"});
  expect_error<OptionError>([] { Mask::dilated(0); }, {"[Mask::dilated]", "0"});
  expect_error<OptionError>([] { Mask::chunked(0); }, {"[Mask::chunked]", "0"});
  expect_error<OptionError>([] { Mask::chunked(-3, Values{1}); }, {"[Mask::chunked]", "-3"});
  expect_error<OptionError>([] { Mask::global_rows(Values{2, -5}); }, {"-5"});
  expect_error<OptionError>([] { Mask::mask_mod(nullptr); }, {"[Mask::mask_mod]"});
  // One more than these overflows.
  expect_error<OptionError>([] { Mask::global_rows(Values{2, kLargest}); }, {"position", "9223372036854775807"});
  expect_error<OptionError>([] { Mask::global_columns(Values{kLargest}); }, {"position", "9223372036854775807"});
}

TEST(MaskErrors, WhatIsWrittenIsNotShownTwice) {
  std::uint8_t one = 0;
  const Values rows{0, 1};
  expect_error<ShapeError>(
      [&] {
        mask_rows(Mask::causal(), {1, 1, 2, 2}, 0, 0, rows, View<std::uint8_t, 2>(&one, {2, 2}, {0, 0}));
      },
      {"[mask_rows] keep is written"});
}

TEST(MaskErrors, Documents) {
  const auto documents = [](const Values& q, const Values& k) { return [=] { Mask::documents(q, k); }; };
  expect_error<OptionError>(documents({}, {0}), {"[Mask::documents]", "q_offsets"});
  expect_error<OptionError>(documents({0}, {}), {"[Mask::documents]", "k_offsets"});
  expect_error<OptionError>(documents({1, 4}, {0, 4}), {"[Mask::documents]", "q_offsets", "begin with 0", "1"});
  expect_error<OptionError>(documents({0, 4}, {2, 4}), {"[Mask::documents]", "k_offsets", "begin with 0", "2"});
  expect_error<OptionError>(documents({0, 4, 3}, {0, 4, 5}), {"[Mask::documents]", "ascend", "4, 3"});
  expect_error<OptionError>(documents({0, 3, 4}, {0, 5, 4}), {"[Mask::documents]", "k_offsets", "ascend", "5, 4"});
  expect_error<ShapeError>(documents({0, 3, 4}, {0, 4}), {"[Mask::documents]", "2", "1"});
  const Values q = {0, 2, 4};
  expect_error<OptionError>([&] { Mask::documents(q, q, Mask::first(1)); }, {"[Mask::documents]", "first(1)"});
  expect_error<OptionError>(
      [&] { Mask::documents(q, q, Mask::causal() | Mask::window(1, 1)); }, {"[Mask::documents]", "|"});
  expect_error<OptionError>(
      [&] {
        Mask::documents(q, Values{0, 2, 5}, Mask::causal());
      },
      {"[Mask::documents]", "kBottomRight", "Tq 2, Tk 3"});
  // Far ends cost no memory and overflow nothing.
  expect_error<OptionError>(
      documents({0, kLargest}, {0, 4}), {"[Mask::documents]", "q_offsets", "9223372036854775807"});
  expect_error<OptionError>(
      documents({0, 4}, {0, kLargest}), {"[Mask::documents]", "k_offsets", "9223372036854775807"});
  EXPECT_NO_THROW(documents({0, kLargest >> 4}, {0, kLargest >> 5})());
  expect_error<ShapeError>(
      [&] { Mask::documents(q, q, Mask::causal(Values{1})); }, {"[Mask::documents]", "one offset per document"});
}

/// Sizes of a call: B 2, H 3, Tq 4, Tk 6.
void expect_misfit(const Mask& mask, std::initializer_list<std::string_view> parts) {
  Tensor<std::uint8_t> keep({2, 3, 4, 6});
  for (std::uint8_t& one : keep.span()) one = 9;
  expect_error<Error>([&] { mask_to_dense(mask, keep); }, parts);
  for (const std::uint8_t one : keep.span()) ASSERT_EQ(one, 9) << "something was written";
  const Tensor<float> q({2, 3, 4, 8}), k({2, 3, 6, 8});
  Tensor<float> out({2, 3, 4, 8}), lse({2, 3, 4});
  for (float& x : out.span()) x = 7;
  EXPECT_THROW(attention_forward(q, k, k, {.out = out, .lse = lse}, {.mask = mask}), Error) << mask.describe();
  EXPECT_THROW(attention_plan(q, k, k, {.mask = mask}), Error);
  for (const float x : out.span()) ASSERT_EQ(x, 7) << "something was written";
}

TEST(MaskErrors, SizesOfACall) {
  expect_misfit(Mask::key_starts(Values{1}), {"[mask_to_dense]", "key_starts", "1", "2"});
  expect_misfit(Mask::key_starts(Values{1, 7}), {"key_starts", "0..Tk", "7", "6"});
  expect_misfit(Mask::query_lengths(Values{5, 1}), {"query_lengths", "0..Tq", "5", "4"});
  expect_misfit(Mask::prefix(Values{-1, 1}), {"prefix", "-1"});
  expect_misfit(Mask::global_rows(Values{4}), {"global rows", "4"});
  expect_misfit(Mask::global_columns(Values{1, 6}), {"global columns", "6"});
  expect_misfit(Mask::dilated(2), {"dilated", "kTopLeft", "4", "6"});
  expect_misfit(Mask::chunked(2), {"chunked", "kTopLeft"});
  expect_misfit(Mask::chunked(2, Values{0}, Align::kTopLeft), {"chunked", "1", "2"});
  expect_misfit(Mask::chunked(2, Values{0, 7}, Align::kTopLeft), {"chunks", "7", "6"});
  expect_misfit(Mask::documents(Values{0, 3}, Values{0, 6}), {"queries", "Tq 4", "3"});
  expect_misfit(Mask::documents(Values{0, 4}, Values{0, 5}), {"keys", "Tk 6", "5"});
  expect_misfit(Mask::documents(Values{0, 1, kLargest >> 4}, Values{0, 1, kLargest >> 4}), {"queries", "Tq 4"});
  expect_misfit(Mask::document_ids(Values{0, 0, 0, 0}, Values{0, 0, 0}), {"document_ids", "keys", "3", "6"});
  const Tensor<Index> three({3, 4}), keys({3, 6});
  expect_misfit(
      Mask::document_ids(View<const Index, 2>(three), View<const Index, 2>(keys)), {"document_ids", "3", "2"});
  // Wherever it stands: within unions and beside others.
  expect_misfit(Mask::first(1) | (Mask::first(2) & Mask::global_rows(Values{4})), {"global rows"});
  expect_misfit(Mask::key_lengths(Values{1, 2}) & (Mask::first(1) | Mask::causal(Align::kBottomRight)),
      {"offsets", "key lengths"});
  const Tensor<Index> one({1, 4}), two({2, 6});
  expect_error<ShapeError>(
      [&] { Mask::document_ids(View<const Index, 2>(one), View<const Index, 2>(two)); }, {"[1, 4]", "[2, 6]"});
}

TEST(MaskErrors, BlockMaps) {
  const BlockMap good = block_map(Mask::first(3), {.q_len = 4, .kv_len = 6, .q_block = 2, .kv_block = 2});
  EXPECT_EQ(good.columns, (Values{0, 1, 0, 1}));
  EXPECT_EQ(good.row_begin, (Values{0, 2, 4}));
  const auto broken = [&](auto&& change) {
    BlockMap map = good;
    change(map);
    return [map] { Mask::blocks(map); };
  };
  expect_error<OptionError>(
      broken([](BlockMap& m) { m.columns[1] = 3; }), {"[Mask::blocks]", "below 3", "got 3 in row 0"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.columns[2] = -1; }), {"[Mask::blocks]", "-1 in row 1"});
  expect_error<OptionError>(
      broken([](BlockMap& m) { m.columns[1] = 0; }), {"[Mask::blocks]", "ascend", "0, 0 in row 0"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.row_begin[1] = 5; }), {"[Mask::blocks]", "row_begin", "5"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.row_begin[0] = 1; }), {"[Mask::blocks]", "row_begin", "1..4"});
  expect_error<OptionError>(
      broken([](BlockMap& m) { m.row_begin.pop_back(); }), {"[Mask::blocks]", "row_begin", "2: got 2"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.q_block = 0; }), {"[Mask::blocks]", "0 x 2"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.num_heads = 0; }), {"[Mask::blocks]", "1 x 0"});
  // Products of sizes that overflow.
  expect_error<OptionError>(
      broken([](BlockMap& m) { m.kv_block = kLargest; }), {"[Mask::blocks]", "2 x 9223372036854775807"});
  expect_error<OptionError>(
      broken([](BlockMap& m) { m.kv_blocks = kLargest; }), {"[Mask::blocks]", "9223372036854775807 of 2"});
  expect_error<OptionError>(broken([](BlockMap& m) { m.batch = m.num_heads = Index{1} << 32; }),
      {"[Mask::blocks]", "4294967296 x 4294967296 x 2"});
  const BlockMap small = block_map(Mask(), {.q_len = 2, .kv_len = 6, .q_block = 2, .kv_block = 2});
  expect_misfit(Mask::blocks(small), {"block map", "1 x 3", "4 x 6"});
  const BlockMap heads = block_map(Mask(), {.num_heads = 2, .q_len = 4, .kv_len = 6, .q_block = 2, .kv_block = 2});
  expect_misfit(Mask::blocks(heads), {"block map", "1 x 2", "2 x 3"});
  expect_error<OptionError>(
      [] { block_map(Mask(), {.q_len = 1, .kv_len = 1, .kv_block = kLargest}); }, {"64 x 9223372036"});
  expect_error<OptionError>([] { block_map(Mask(), {.q_len = 1, .kv_len = 1, .q_block = 0}); }, {"0 x 64"});
}

}  // namespace
}  // namespace qkv::test
