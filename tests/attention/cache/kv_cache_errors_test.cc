// Errors of caches, with their words, and that a refusal changes nothing, in every layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "qkv/kv_cache.h"
#include "support/cases/cache_rows.h"
#include "support/errors.h"
#include "support/random.h"

namespace qkv::test {
namespace {

void expect_refusals_change_nothing(CacheLayout layout, CacheStorage storage) {
  KVCacheConfig config = small_config(layout);
  config.storage = storage;
  const bool is_ring = layout == CacheLayout::kRing;
  if (is_ring) config.window = 30, config.max_append = 8, config.capacity = 0;
  KVCache cache(config);
  Random random(7);
  const Rows rows = random_rows(2, 6, random);
  cache.append(rows.k, rows.v);
  const auto first = held(cache, 0), before = held(cache, 1);
  const Index pages = cache.free_pages();
  const auto refuses = [&](const auto& call, const char* words, auto* error) {
    expect_parts(text_of<std::remove_pointer_t<decltype(error)>>(call), {words});
    EXPECT_EQ(cache.free_pages(), pages);
    EXPECT_EQ(cache.sequences().size(), 2U);
    EXPECT_EQ(held(cache, 0), first);
    EXPECT_EQ(held(cache, 1), before);
  };
  ShapeError* shape = nullptr;
  OptionError* option = nullptr;
  CacheFullError* full = nullptr;
  const Rows many = random_rows(2, 60, random), one = random_rows(1, 1, random);
  const Tensor<double> wide_k({2, kHeads, 1, kWidth}), wide_v({2, kHeads, 1, kValueWidth});
  const std::vector<Index> twice = {1, 1}, unknown = {0, 4};
  if (is_ring) {
    refuses(
        [&] { cache.append(many.k, many.v); }, "a ring takes at most max_append tokens at once: got 60 for 8", option);
  } else {
    refuses([&] { cache.append(many.k, many.v); }, "[KVCache::append] a sequence holds at most 40 tokens: got 6 and 60",
        full);
  }
  refuses([&] { cache.append(one.k, one.v); }, "k must be [2, 2, 1, 5]: got [1, 2, 1, 5]", shape);
  refuses([&] { cache.append(rows.k, rows.k); }, "v must be [2, 2, 6, 3]: got [2, 2, 6, 5]", shape);
  refuses([&] { cache.append(wide_k, wide_v); }, "double needs a cache of f64", option);
  const View<const float, 4> null_k(nullptr, {2, kHeads, 3, kWidth}), null_v(nullptr, {2, kHeads, 3, kValueWidth});
  refuses([&] { cache.append(null_k, null_v); }, "[KVCache::append] k must not be null: got sizes [2, 2, 3, 5]", shape);
  refuses([&] { cache.append(twice, rows.k, rows.v); }, "named once: got 1 twice", option);
  refuses([&] { cache.append(unknown, rows.k, rows.v); }, "one of the cache's: got 4", option);
  refuses([&] { cache.truncate(0, 7); }, "length must be in 0..6: got 7", option);
  refuses([&] { cache.truncate(9, 0); }, "one of the cache's: got 9", option);
  refuses([&] { cache.fork(-1); }, "one of the cache's: got -1", option);
  refuses([&] { cache.free(3); }, "one of the cache's: got 3", option);
  refuses([&] { cache.key_value(unknown); }, "one of the cache's: got 4", option);
  Tensor<float> keys({kHeads, 3, kWidth});
  refuses([&] { cache.read(0, 3, keys, keys); }, "v [Hkv, n, Dv]", shape);
  Tensor<float> values({kHeads, 3, kValueWidth});
  refuses([&] { cache.read(0, 4, keys, values); }, "tokens must be in 0..6: got 3 from 4", option);
  Tensor<float> both({kHeads, 3, std::max(kWidth, kValueWidth)});
  const View<float, 3> shared = both;
  refuses([&] { cache.read(0, 0, shared.sliced(2, 0, kWidth), shared.sliced(2, 0, kValueWidth)); },
      "must share no element", shape);
  constexpr Index last = std::numeric_limits<Index>::max();
  refuses([&] { cache.read(0, last, keys, values); }, "got 3 from 9223372036854775807", option);
}

TEST(KVCache, RefusalsLeaveItAsItWas) {
  for (const CacheLayout layout : {CacheLayout::kContiguous, CacheLayout::kRing, CacheLayout::kPaged}) {
    for (const CacheStorage storage :
        {CacheStorage::kF32, CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8, CacheStorage::kInt4}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(layout) << " " << static_cast<int>(storage));
      expect_refusals_change_nothing(layout, storage);
    }
  }
}

/// One sequence has room and the other has not, or there are pages for only one: neither is touched.
TEST(KVCache, AFullCacheTakesNothingOfABatch) {
  for (const CacheLayout layout : {CacheLayout::kContiguous, CacheLayout::kPaged}) {
    KVCacheConfig config = small_config(layout);
    config.capacity = 9;
    if (layout == CacheLayout::kPaged) config.pages = 5;  // of 4 tokens: two each, and one
    KVCache cache(config);
    Random random(13);
    const Index second = 1;
    const Rows five = random_rows(2, 5, random), two = random_rows(1, 2, random), four = random_rows(2, 4, random);
    cache.append(five.k, five.v);
    cache.append({&second, 1}, two.k, two.v);
    const auto first_rows = held(cache, 0), second_order_rows = held(cache, 1);
    const Index pages = cache.free_pages();
    EXPECT_THROW(cache.append(four.k, four.v), CacheFullError);
    EXPECT_EQ(held(cache, 0), first_rows);
    EXPECT_EQ(held(cache, 1), second_order_rows);
    EXPECT_EQ(cache.free_pages(), pages);
    for (int n = 0; n < 3; ++n) cache.add_sequence();
    EXPECT_THROW(cache.add_sequence(), CacheFullError);
    EXPECT_THROW(cache.fork(0), CacheFullError);
    EXPECT_EQ(cache.sequences().size(), 5U);
    EXPECT_EQ(held(cache, 0), first_rows);
  }
}

TEST(KVCache, ConfigsThatCannotBe) {
  const auto refuses = [](KVCacheConfig config, std::string_view words) {
    expect_error<OptionError>([&] { const KVCache cache(config); }, {words});
  };
  refuses({}, "head_dim");
  refuses({.head_dim = 4}, "capacity of at least 1 token: got 0");
  refuses({.head_dim = 4, .layout = CacheLayout::kRing}, "a window and max_append of at least 1: got 0, 1");
  refuses({.head_dim = 4, .layout = CacheLayout::kPaged}, "pages 0");
  // What the layout does not read.
  refuses({.head_dim = 4, .capacity = 9, .first = 1}, "first is of a ring: leave it at 0: got 1");
  refuses({.head_dim = 4, .capacity = 9, .window = 2}, "window is of a ring");
  refuses({.head_dim = 4, .capacity = 9, .max_append = 2}, "max_append is of a ring: leave it at 1: got 2");
  refuses({.head_dim = 4, .capacity = 9, .page_size = 8}, "page_size is of a paged cache: leave it at 64: got 8");
  refuses({.head_dim = 4, .capacity = 9, .pages = 2}, "pages is of a paged cache");
  refuses({.head_dim = 4, .layout = CacheLayout::kRing, .capacity = 9, .window = 4}, "capacity is not of a ring");
  refuses({.head_dim = 4, .layout = CacheLayout::kRing, .window = 4, .first = -1}, "got -1");
  refuses({.head_dim = 4, .storage = static_cast<CacheStorage>(9), .capacity = 9}, "values of their types: got 9");
  refuses({.head_dim = 4, .sequences = 3, .max_sequences = 2, .capacity = 9}, "max_sequences");
  // Sums and products that overflow.
  constexpr Index largest = std::numeric_limits<Index>::max(), large = Index{1} << 39;
  refuses({.head_dim = 4, .capacity = largest}, "below 2^40: got 9223372036854775807");
  refuses({.head_dim = 4, .layout = CacheLayout::kRing, .window = largest, .max_append = 2}, "below 2^40");
  refuses({.head_dim = 4, .layout = CacheLayout::kPaged, .capacity = largest, .pages = 1}, "below 2^40");
  refuses({.head_dim = 4, .max_sequences = largest, .capacity = 1}, "below 2^40");
  EXPECT_THROW(KVCache({.head_dim = 4, .layout = CacheLayout::kPaged, .page_size = large, .pages = large}), ShapeError);
  EXPECT_THROW(
      KVCache({.head_dim = 4, .layout = CacheLayout::kPaged, .max_sequences = large, .page_size = 1, .pages = large}),
      ShapeError);
}

TEST(KeyValue, MemoryThatIsReadIsNotWritten) {
  Tensor<std::uint8_t> mask({1, 1, 8, 32});  // as many bytes as out has
  const Tensor<float> x({1, 1, 8, 8});
  const View<float, 4> over(reinterpret_cast<float*>(mask.data()), {1, 1, 8, 8});
  test::expect_error<ShapeError>(
      [&] {
        attention_forward(
            x, x, x, {.out = over}, {.mask = Mask::keep(View<const std::uint8_t, 4>(mask.view<4>().sliced(3, 0, 8)))});
      },
      {"out must share no element with the mask"});
  Tensor<float> memory({1, 8, 64, 8});
  const View<float, 4> all = memory;
  const Tensor<float> q({1, 8, 7, 8});
  const Index page = 0, length = 40;
  const View<const float, 4> k(q.data(), {1, 1, 64, 8}, {0, 0, 0, 1}), v = all.sliced(1, 0, 1);
  for (const KeyValue& kv : {KeyValue::contiguous(k, v),
           KeyValue::paged(k, v, View<const Index, 2>(&page, {1, 1}), std::span<const Index>(&length, 1))}) {
    test::expect_error<ShapeError>([&] { attention_forward(q, kv, {.out = all.sliced(2, 0, 7)}); },
        {"[attention_forward] out must share no element with v", "[1, 1, 64, 8]"});
  }
}

TEST(KeyValue, ChecksTheMemoryOfTheCaller) {
  const Tensor<float> k({4, 2, 8, 6}), v({4, 2, 8, 5});
  const std::vector<Index> lengths = {8, 3, 0, 5}, long_one = {8, 3, 9, 5}, two = {9, 16}, short_two = {3, 16};
  const Tensor<Index> none({2, 2});
  Tensor<Index> table({2, 2});
  const Index entries[] = {3, 1, 0, 2};
  std::ranges::copy(entries, table.data());
  EXPECT_EQ(KeyValue::contiguous(k, v).max_length(), 8);
  EXPECT_EQ(KeyValue::contiguous(k, v, lengths).length(1), 3);
  EXPECT_EQ(KeyValue::paged(k, v, table, two).max_length(), 16);
  EXPECT_THROW(KeyValue::contiguous(k, v, two), ShapeError);
  EXPECT_THROW(KeyValue::contiguous(k, v, long_one), OptionError);
  table.data()[1] = 4;
  EXPECT_THROW(KeyValue::paged(k, v, table, two), OptionError);
  EXPECT_EQ(KeyValue::paged(k, v, table, short_two).length(0), 3) << "an entry that no token needs";
}

}  // namespace
}  // namespace qkv::test
