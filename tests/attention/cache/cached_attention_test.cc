// Attention on caches: the plain call is the truth. Every layout is bit-identical to it if the arithmetic is the same,
// whatever the threads, the batch or what else the cache holds; other storages stay within computed bounds of the
// reference.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/plan/choose.h"
#include "support/checks/check_cached.h"
#include "support/errors.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class T> class CachedAttention : public testing::Test {};
TYPED_TEST_SUITE(CachedAttention, FloatTypes);

/// A block table of the caller's own, in any order.
TYPED_TEST(CachedAttention, PagesOfTheCallerGiveTheBitsOfThePlainCall) {
  using T = TypeParam;
  constexpr Index page = 24, kv_len = 200, pages = 12;
  for (const Index q_len : {2, 33}) {
    const Problem<T> problem(cached_case(2, q_len, kv_len, 20, 12, MaskKind::kCausalBottomRight));
    const Index order[] = {7, 2, 11, 0, 4, 9, 1, 3, 10};
    Tensor<T> k({pages, 2, page, 20}), v({pages, 2, page, 12});
    for (Tensor<T>* t : {&k, &v}) std::ranges::fill(t->span(), kQuietNan<T>);
    const auto copy = [&](const View<T, 4>& from, const View<T, 4>& to) {
      for_each_index({2, kv_len, from.size(3)},
          [&](Index g, Index j, Index d) { to(order[j / page], g, j % page, d) = from(0, g, j, d); });
    };
    copy(problem.k(), k);
    copy(problem.v(), v);
    const View<const Index, 2> table(order, {1, 9});
    const Index length = kv_len;
    for_each_isa(2, [&](Context& context) {
      const View<const T, 4> plain_k = problem.k(), plain_v = problem.v();
      EXPECT_TRUE(Answer<T>(problem.q(), KeyValue::paged(k, v, table, {&length, 1}), problem.options, context) ==
                  Answer<T>(problem.q(), plain_k, plain_v, problem.options, context));
    });
  }
}

/// A million keys in pages of one and of 16 tokens, the last page first.
TYPED_TEST(CachedAttention, AMillionKeysInPagesGiveTheBitsOfThePlainCall) {
  using T = TypeParam;
  constexpr Index kv_len = Index{1} << 20, width = 4;
  Tensor<T> q({1, 2, 1, width}), k({1, 1, kv_len, width}), v({1, 1, kv_len, width});
  std::mt19937 random(3);
  for (Tensor<T>* t : {&q, &k, &v})
    for (T& x : t->span()) x = static_cast<T>(static_cast<int>(random() % 17) - 8) / 4;
  for (const Index page : {1, 16}) {
    const Index pages = kv_len / page;
    Tensor<T> paged_k({pages, 1, page, width}), paged_v({pages, 1, page, width});
    std::vector<Index> order(static_cast<std::size_t>(pages));
    for (Index n = 0; n < pages; ++n) {
      const Index at = order[static_cast<std::size_t>(n)] = pages - 1 - n;
      std::copy_n(k.data() + n * page * width, page * width, paged_k.data() + at * page * width);
      std::copy_n(v.data() + n * page * width, page * width, paged_v.data() + at * page * width);
    }
    for_each_isa(2, [&](Context& context) {
      const KeyValue paged =
          KeyValue::paged(paged_k, paged_v, View<const Index, 2>(order.data(), {1, pages}), {&kv_len, 1});
      EXPECT_TRUE(
          Answer<T>(q, paged, {}, context) == Answer<T>(q, View<const T, 4>(k), View<const T, 4>(v), {}, context));
    });
  }
}

/// Sequences of different lengths are bit-identical to each one alone, position biases included.
template <class T> void expect_no_neighbours(CacheStorage storage) {
  const std::vector<Index> lengths = {5, 700, 0, 64, 1030, 333};
  const auto batch = static_cast<Index>(lengths.size());
  for (const Index q_len : {1, 4, 30}) {
    AttentionCase each = cached_case(2, q_len, 1030, 24, 17);
    each.batch = batch;
    const Problem<T> problem(each);
    const View<T, 4> q = problem.q();
    for (const CacheKind kind : kLayouts) {
      KVCache cache = empty_cache(kind, storage, batch, 2, 24, 17, 1030);
      fill_cache(cache, problem.k(), problem.v(), lengths, 3);
      const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight),
          .position_bias =
              kind == CacheKind::kPages16 ? PositionBias::alibi(alibi_slopes(4), Align::kBottomRight) : PositionBias()};
      for_each_isa(2, [&](Context& context) {
        const Answer<T> together(q, cache.key_value(), options, context);
        for (Index b = 0; b < batch; ++b) {
          const Answer<T> alone(q.sliced(0, b, b + 1), cache.key_value({&b, 1}), options, context);
          const Index rows = 4 * q_len;
          EXPECT_TRUE(std::equal(alone.lse.data(), alone.lse.data() + rows, together.lse.data() + b * rows)) << b;
          EXPECT_EQ(std::memcmp(alone.out.data(), together.out.data() + b * rows * 17,
                        static_cast<std::size_t>(rows * 17) * sizeof(T)),
              0)
              << cache_name(kind) << " sequence " << b << " of length " << lengths[static_cast<std::size_t>(b)];
        }
      });
    }
  }
}

TYPED_TEST(CachedAttention, ALongerNeighbourChangesNoBits) { expect_no_neighbours<TypeParam>(kStorageOf<TypeParam>); }
TEST(CachedAttentionStorage, ALongerNeighbourChangesNoBits) {
  expect_no_neighbours<float>(CacheStorage::kInt8);
  expect_no_neighbours<float>(CacheStorage::kInt4);
  expect_no_neighbours<float>(CacheStorage::kBF16);
}

/// Bottom-right means the end of each sequence: rows are those of the reference with one offset per sequence, also
/// under other masks.
TYPED_TEST(CachedAttention, MasksMeetTheLengths) {
  using T = TypeParam;
  const std::vector<Index> lengths = {300, 41, 120}, offsets = {297, 38, 117};
  AttentionCase each = cached_case(2, 3, 300, 16, 16);
  each.batch = 3;
  Problem<T> problem(each);
  const auto expect = [&](const Mask& mask, const reference::Keep& keep) {
    problem.mask.keep = [&](Index b, Index h, Index i, Index j) {
      return j < lengths[static_cast<std::size_t>(b)] && keep(b, h, i, j);
    };
    const Expectation<T> expectation(problem, false);
    for (const CacheKind kind : kLayouts) {
      KVCache cache = empty_cache(kind, kStorageOf<T>, 3, 2, 16, 16, 300);
      fill_cache(cache, problem.k(), problem.v(), lengths, 5);
      Worst worst;
      for_each_isa(1, [&](Context& context) {
        Result<T> result(problem);
        attention_forward(
            problem.q(), cache.key_value(), {.out = result.out.view, .lse = result.lse}, {.mask = mask}, context);
        EXPECT_TRUE(expectation.holds_forward(result, mask.describe(), worst));
      });
    }
  };
  const auto position = [&](Index b, Index i) { return offsets[static_cast<std::size_t>(b)] + i; };
  expect(Mask(), [](Index, Index, Index, Index) { return true; });
  expect(Mask::causal(Align::kBottomRight), [&](Index b, Index, Index i, Index j) { return j <= position(b, i); });
  expect(Mask::causal(std::span<const Index>(offsets)),
      [&](Index b, Index, Index i, Index j) { return j <= position(b, i); });
  expect(Mask::sliding(50, Align::kBottomRight),
      [&](Index b, Index, Index i, Index j) { return j <= position(b, i) && j > position(b, i) - 50; });
  expect(Mask::causal(Align::kTopLeft), [&](Index, Index, Index i, Index j) { return j <= i; });
  const std::vector<Index> begins = {10, 0, 100};
  const auto begun = [&](Index b, Index, Index, Index j) { return j >= begins[static_cast<std::size_t>(b)]; };
  expect(Mask::key_starts(begins), begun);
  expect(Mask::key_starts(begins) & Mask::causal(Align::kBottomRight),
      [&](Index b, Index, Index i, Index j) { return begun(b, 0, i, j) && j <= position(b, i); });
}

/// No first keys; some in the middle of a chunk, of a page, alone, more than the window, none of them overwritten.
TYPED_TEST(CachedAttention, ARingIsAWindowAndItsFirstKeys) {
  for (const Index first : {0, 1, 4, 64, 130, 399}) {
    SCOPED_TRACE(first);
    check_ring<TypeParam>({2, 90, 400, 30, first, kStorageOf<TypeParam>, 9});
  }
  check_ring<TypeParam>({.group = 1, .window = 1, .most = 90, .first = 3, .storage = kStorageOf<TypeParam>, .seed = 2});
}
TEST(CachedAttentionStorage, ARingIsAWindowAndItsFirstKeys) {
  for (const CacheStorage storage :
      {CacheStorage::kInt8, CacheStorage::kInt4, CacheStorage::kBF16, CacheStorage::kF16}) {
    check_ring<float>(
        {.group = 2, .window = 70, .most = 300, .max_append = 20, .first = 5, .storage = storage, .seed = 4});
  }
}

void expect_errors_write_nothing(KVCache cache) {
  const Tensor<float> q({1, 4, 2, 8}), wide({1, 4, 2, 9}), three({1, 3, 2, 8}), two({2, 4, 2, 8});
  const Tensor<double> q64({1, 4, 2, 8});
  Tensor<float> k({1, 2, 10, 8});
  for (Index n = 0; n < k.count(); ++n) k.data()[n] = static_cast<float>(n % 31);
  cache.append(k, k);
  Tensor<float> out({1, 4, 2, 8}), bias({1, 1, 2, 11});
  Tensor<float> kept_k({2, 10, 8}), kept_v({2, 10, 8});
  Tensor<double> out64({1, 4, 2, 8});
  std::ranges::fill(out.span(), 7.0F);
  const auto refuses = [&](const auto& call, const char* words, auto* error) {
    expect_parts(text_of<std::remove_pointer_t<decltype(error)>>(call), {words});
    for (const float x : out.span()) EXPECT_EQ(x, 7.0F);
    EXPECT_EQ(cache.length(0), 10);
    cache.read(0, 0, kept_k, kept_v);
    EXPECT_TRUE(std::ranges::equal(kept_k.span(), k.span()));
  };
  const auto run = [&](const Tensor<float>& queries, const AttentionOptions& options) {
    return [&queries, &cache, &out, options] { attention_forward(queries, cache.key_value(), {.out = out}, options); };
  };
  ShapeError* shape = nullptr;
  OptionError* option = nullptr;
  UnsupportedError* unsupported = nullptr;
  refuses(run(wide, {}), "head_dim of k must equal head_dim of q", shape);
  refuses(run(three, {}), "heads of k must divide heads of q", shape);
  refuses(run(two, {}), "batch of k must equal batch of q", shape);
  refuses(run(q, {.mask = Mask::causal()}), "pass Align::kBottomRight", option);
  refuses(run(q, {.bias = bias}), "bias must have sizes", shape);
  refuses(run(q, {.empty_row = EmptyRow::kMean}), "kMean", unsupported);
  refuses(run(q, {.dropout = {.p = 0.5, .training = true}}), "dropout", unsupported);
  refuses([&] { attention_forward(q64, cache.key_value(), {.out = out64}); }, "a cache of f64", option);
}

TEST(CachedAttentionErrors, SayWhatIsWrongAndWriteNothing) {
  for (const CacheKind kind : {CacheKind::kContiguous, CacheKind::kPages1, CacheKind::kPages16, CacheKind::kRing}) {
    SCOPED_TRACE(cache_name(kind));
    expect_errors_write_nothing(empty_cache(kind, CacheStorage::kF32, 1, 2, 8, 8, 20, 15, 10));
  }
  // More queries than a ring was made for: the first one's window is overwritten.
  KVCache ring = empty_cache(CacheKind::kRing, CacheStorage::kF32, 1, 2, 8, 8, 0, 4, 2);
  const Tensor<float> k({1, 2, 2, 8}), q({1, 2, 3, 8});
  for (int n = 0; n < 4; ++n) ring.append(k, k);
  Tensor<float> out({1, 2, 3, 8});
  EXPECT_THROW(
      attention_forward(q, ring.key_value(), {.out = out}, {.mask = Mask::causal(Align::kBottomRight)}), OptionError);
  EXPECT_EQ(ring.length(0), 8);
}

/// A mask may keep all keys that a ring hides, or drop them all; one that chooses among them is refused, and only
/// once there are such keys.
TEST(CachedAttentionErrors, ARingHidesNoKeyThatAMaskAsksFor) {
  constexpr Align kEnd = Align::kBottomRight;
  constexpr Index kWindow = 6, kLength = 20;
  const Tensor<float> one({1, 2, 1, 8}), q({1, 4, 1, 8});
  Tensor<float> out({1, 4, 1, 8});
  Tensor<std::uint8_t> last({1, kLength}), all({1, kLength});
  std::ranges::fill(last.span().subspan(kLength - kWindow), 1);
  std::ranges::fill(all.span(), 1);
  const Mask window = Mask::window(kWindow - 1, 0, kEnd), causal = Mask::causal(kEnd);
  const auto sees = [](Index first) {
    return Mask::mask_mod([first](Index, Index, Index, Index j) { return j < first || j > kLength - 1 - kWindow; });
  };
  for (const Index first : {0, 4}) {
    KVCache ring = empty_cache(CacheKind::kRing, CacheStorage::kF32, 1, 2, 8, 8, 0, kWindow, 1, first);
    for (Index n = 0; n < kWindow; ++n) ring.append(one, one);
    const auto run = [&](const Mask& mask) { attention_forward(q, ring.key_value(), {.out = out}, {.mask = mask}); };
    run(window | Mask::first(4));
    for (Index n = kWindow; n < kLength; ++n) ring.append(one, one);
    for (const Mask& mask :
        {Mask(), causal, window, Mask::sliding(kWindow - 1, kEnd), causal & Mask::keep(last, MaskAxes::kBk),
            Mask::keep(all, MaskAxes::kBk), window | Mask::first(first), sees(first), window & sees(9)}) {
      SCOPED_TRACE(mask.describe());
      EXPECT_NO_THROW(run(mask));
    }
    const auto refuses = [&](const Mask& mask, Index key) {
      SCOPED_TRACE(mask.describe());
      expect_parts(text_of<OptionError>([&] { run(mask); }),
          {"the mask needs key " + std::to_string(key), mask.describe(), "for query 0 of sequence 0",
              "window 6, first " + std::to_string(first), "KVCacheConfig::first",
              first == 0 ? "& Mask::window(5, -1, Align::kBottomRight):"
                         : "& (Mask::window(5, -1, Align::kBottomRight) | Mask::first(4)):"});
    };
    refuses(window | Mask::first(first + 1), first);
    refuses((window | Mask::first(first + 2)) & causal, first);
    refuses(Mask::window(kWindow, 0, kEnd), kLength - 1 - kWindow);
    refuses(causal & Mask::key_starts(std::vector<Index>{first + 3}), first + 3);
    refuses(sees(9), first);
    refuses(window | sees(first + 1), first);
  }
}

}  // namespace
}  // namespace qkv::test
