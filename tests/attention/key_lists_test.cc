// Calls that read only the keys that a mask lists: against the textbook, forward, backward, on caches; their bits; NaN in keys
// that are not listed. Not: the leaf itself (mask/mask_algebra_test.cc), lists beside other options, which tiles compute
// (cases_test.cc).
#include <gtest/gtest.h>

#include "support/cases/cached_case.h"
#include "support/cases/listed_case.h"
#include "support/checks/check_cached.h"
#include "support/checks/check_case.h"

namespace qkv::test {
namespace {

template <class T>
class KeyListsCall : public testing::Test {};
TYPED_TEST_SUITE(KeyListsCall, StorageTypes);

TYPED_TEST(KeyListsCall, ForwardAndBackwardAreTheTextbooks) {
  using T = TypeParam;
  Worst worst;
  std::uint64_t number = 0;
  for (const ListShape& s : kListShapes) {
    AttentionCase made = s.as_case();
    made.softcap = number % 3 == 1 ? 5 : 0;
    made.empty_row = static_cast<EmptyRow>(number % 4 == 3 ? 2 : 0);
    made.sinks = number % 4 == 2 ? SinkKind::kUniform : SinkKind::kNone;
    made.layout = number++ % 2 == 1 ? Layout::kBthd : Layout::kBhtd;
    SCOPED_TRACE(made.name());
    const ListedProblem<T> problem(s, made);
    const Expectation<T> expectation(problem);
    for_each_isa(2, [&](Context& context) {
      ASSERT_EQ(attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm, "lists");
      Result<T> result(problem);
      result.run_forward(problem, context);
      EXPECT_TRUE(expectation.holds_forward(result, made.name(), worst));
      result.run_weights(problem, context);
      EXPECT_TRUE(expectation.holds_weights(result, made.name(), worst));
      result.run_backward(problem, context);
      EXPECT_TRUE(expectation.holds_backward(result, made.name(), worst));
      EXPECT_TRUE(result.sentinels_intact());
    });
  }
  worst.print("lists of keys");
}

TYPED_TEST(KeyListsCall, CachesOfEveryLayout) {
  using T = TypeParam;
  if constexpr (!kIsHalf<T>) {
    Worst worst;
    for (const CacheKind kind : kLayouts) {
      for (const CacheStorage storage : {kStorageOf<T>, CacheStorage::kInt8}) {
        if (std::is_same_v<T, double> && storage == CacheStorage::kInt8) continue;
        for (const ListShape& s : {kListShapes[0], kListShapes[3], kListShapes[4]}) {
          const ListedProblem<T> listed(s, s.as_case());
          AttentionCase made = s.as_case();
          Problem<T> problem(made);
          problem.options.mask = listed.options.mask;
          problem.mask = listed.mask;
          KVCache cache = empty_cache(kind, storage, s.batch, s.num_kv_heads, s.head_dim, s.v_head_dim, s.kv_len);
          const std::vector<Index> lengths(static_cast<std::size_t>(s.batch), s.kv_len);
          fill_cache(cache, problem.k(), problem.v(), lengths, made.seed);
          take_what_is_stored(cache, lengths, problem);
          const Expectation<T> expectation(problem);
          for_each_isa(2, [&](Context& context) {
            EXPECT_EQ(attention_plan(problem.q(), cache.key_value(), problem.options, context).algorithm, "lists");
            Result<T> result(problem);
            attention_forward(problem.q(), cache.key_value(), {.out = result.out.view, .lse = result.lse}, problem.options,
                              context);
            EXPECT_TRUE(expectation.holds_forward(result, made.name() + " " + cache_name(kind), worst));
          });
        }
      }
    }
    worst.print("lists of keys on caches");
  }
}

TYPED_TEST(KeyListsCall, ARowHasTheBitsThatItHasAlone) {
  using T = TypeParam;
  for (const ListShape& s : kListShapes) {
    const ListedProblem<T> problem(s, s.as_case());
    const auto run = [&](const View<const T, 4>& q, const Mask& mask, int threads) {
      Context context({.threads = threads});
      return Answer<T>(q, problem.k(), problem.v(), AttentionOptions{.mask = mask}, context);
    };
    const Answer<T> all = run(problem.q(), problem.options.mask, 1);
    EXPECT_TRUE(run(problem.q(), problem.options.mask, 3) == all) << "threads";
    const View<const std::int32_t, 4> index = problem.index;
    Tensor<std::int32_t> backwards({index.size(0), index.size(1), index.size(2), index.size(3) + 1});
    for (Index row = 0; row < problem.index.count() / s.width; ++row) {
      backwards.data()[row * (s.width + 1)] = -1;
      for (Index n = 0; n < s.width; ++n) {
        backwards.data()[row * (s.width + 1) + 1 + n] = problem.index.data()[row * s.width + s.width - 1 - n];
      }
    }
    EXPECT_TRUE(run(problem.q(), Mask::keys(backwards), 2) == all) << "order of the keys";
    if (s.q_len * s.num_heads / s.num_kv_heads <= 16 || s.q_len < 4)
      continue;  // a row alone is one of few, and may take decode
    const Index i = 3;
    const Answer<T> one = run(problem.q().sliced(2, i, i + 1), Mask::keys(index.sliced(2, i, i + 1)), 2);
    for (Index b = 0; b < s.batch; ++b) {
      for (Index h = 0; h < s.num_heads; ++h) {
        EXPECT_EQ(std::memcmp(&one.out.template view<4>()(b, h, 0, 0), &all.out.template view<4>()(b, h, i, 0),
                              static_cast<std::size_t>(s.v_head_dim) * sizeof(T)),
                  0)
            << "query " << i << " alone, sequence " << b << ", head " << h;
      }
    }
  }
}

TYPED_TEST(KeyListsCall, GradientsDoNotDependOnThreads) {
  using T = TypeParam;
  for (const ListShape& s : kListShapes) {
    const ListedProblem<T> problem(s, s.as_case());
    const auto run = [&](int threads, Result<T>& result) {
      Context context({.threads = threads});
      result.run_forward(problem, context);
      result.run_backward(problem, context);
    };
    Result<T> one(problem), more(problem);
    run(1, one);
    run(3, more);
    for (std::size_t n = 0; n < 3; ++n) {
      EXPECT_TRUE(same_bits(copy_as<T>(one.gradients.views[n]), copy_as<T>(more.gradients.views[n]))) << "gradient " << n;
    }
  }
}

// With invariant bits a list is a mask like any other: the row sees the same keys at the same positions.
TYPED_TEST(KeyListsCall, InvariantBitsAreThoseOfTheDenseMask) {
  using T = TypeParam;
  for (const ListShape& s : kListShapes) {
    const ListedProblem<T> problem(s, s.as_case());
    for_each_isa(2, [&](Context& context) {
      const auto run = [&](const Mask& mask) {
        const AttentionOptions options{.mask = mask, .bits = Bits::kInvariant};
        return Answer<T>(problem.q(), problem.k(), problem.v(), options, context);
      };
      EXPECT_TRUE(run(problem.options.mask) == run(Mask::keep(problem.keep)));
    });
  }
}

// Lists that are not short, and lists in a union, are computed by tiles: the bits of the dense mask.
TYPED_TEST(KeyListsCall, TilesGiveTheBitsOfTheDenseMask) {
  using T = TypeParam;
  const ListShape s{2, 4, 2, 40, 150, 20, 20, 2, 90};
  const ListedProblem<T> problem(s, s.as_case());
  for_each_isa(2, [&](Context& context) {
    const auto run = [&](const Mask& mask) {
      return Answer<T>(problem.q(), problem.k(), problem.v(), AttentionOptions{.mask = mask}, context);
    };
    ASSERT_EQ(attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm, "tiled");
    EXPECT_TRUE(run(problem.options.mask) == run(Mask::keep(problem.keep)));
  });
}

TEST(KeyLists, JoinedMasksFilter) {
  const ListShape s{1, 8, 1, 60, 200, 16, 16, 1, 20};
  const AttentionCase made = s.as_case();
  const Mask causal = Mask::causal(Align::kBottomRight);
  const ListedProblem<float> problem(s, made, &causal), all(s, made);
  for (Index i = 0; i < s.q_len; ++i) {
    for (Index j = 0; j < s.kv_len; ++j) ASSERT_EQ(problem.kept(0, 0, i, j), j <= i + 140 && all.kept(0, 0, i, j));
  }
  Worst worst;
  const Expectation<float> expectation(problem);
  for_each_isa(1, [&](Context& context) {
    ASSERT_EQ(attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm, "lists");
    Result<float> result(problem);
    result.run_forward(problem, context);
    EXPECT_TRUE(expectation.holds_forward(result, made.name(), worst));
    result.run_backward(problem, context);
    EXPECT_TRUE(expectation.holds_backward(result, made.name(), worst));
  });
}

// Heads that share a list need not share the rest of the mask.
TYPED_TEST(KeyListsCall, JoinedMasksMayDifferByHead) {
  using T = TypeParam;
  Worst worst;
  for (const ListShape& s : {ListShape{1, 2, 1, 31, 65, 16, 16, 1, 3}, ListShape{2, 8, 2, 1, 200, 20, 12, 2, 30},
                             ListShape{1, 24, 1, 40, 250, 20, 16, 1, 25}}) {
    Tensor<std::uint8_t> heads({1, s.num_heads, 1, 1}), pairs({1, s.num_heads, s.q_len, s.kv_len});
    for (Index h = 0; h < s.num_heads; ++h) heads.data()[h] = h % 2 == 0;
    for (Index n = 0; n < pairs.count(); ++n) pairs.data()[n] = n * 7 % 11 < 6;
    const Mask odd = Mask::keep(heads), some = Mask::keep(pairs), united = Mask::causal(Align::kBottomRight) | some;
    for (const Mask* filter : {&odd, &some, &united}) {
      const AttentionCase made = s.as_case();
      ListedProblem<T> problem(s, made, filter);
      const Expectation<T> expectation(problem);
      KVCache cache = empty_cache(CacheKind::kPages16, kStorageOf<T>, s.batch, s.num_kv_heads, s.head_dim, s.v_head_dim, s.kv_len);
      fill_cache(cache, problem.k(), problem.v(), std::vector<Index>(static_cast<std::size_t>(s.batch), s.kv_len), made.seed);
      for_each_isa(2, [&](Context& context) {
        Result<T> result(problem);
        result.run_forward(problem, context);
        EXPECT_TRUE(expectation.holds_forward(result, made.name(), worst));
        result.run_backward(problem, context);
        EXPECT_TRUE(expectation.holds_backward(result, made.name(), worst));
        attention_forward(problem.q(), cache.key_value(), {.out = result.out.view, .lse = result.lse}, problem.options, context);
        EXPECT_TRUE(expectation.holds_forward(result, made.name() + " on a cache", worst));
      });
    }
  }
  worst.print("lists of keys joined with masks of each head");
}

TEST(KeyLists, MayKeepWhatAnyHeadOfAnySequenceLists) {
  constexpr Index length = 300;
  Tensor<std::int32_t> index({2, 2, length, 3});
  for (Index row = 0; row < 4 * length; ++row) {
    const Index i = row % length;
    for (Index n = 0; n < 3; ++n) index.data()[row * 3 + n] = static_cast<std::int32_t>(i / 100 * 100 + (i + n) % 100);
  }
  const View<std::int32_t, 4> keys = index;
  keys(1, 1, 7, 1) = 250;
  keys(1, 1, 8, 1) = -1;
  const auto may_keep = [&](Index q_begin, Index q_end, Index k_begin, Index k_end) {
    return mask_may_keep(Mask::keys(index), {2, 4, length, length}, q_begin, q_end, k_begin, k_end);
  };
  EXPECT_TRUE(may_keep(0, 100, 0, 100));
  EXPECT_TRUE(may_keep(0, 100, 250, 251)) << "by the second head of the second sequence";
  EXPECT_FALSE(may_keep(0, 100, 251, 300));
  EXPECT_FALSE(may_keep(0, 100, 100, 250)) << "between listed keys";
  EXPECT_FALSE(may_keep(100, 200, 0, 100));
  EXPECT_FALSE(may_keep(100, 200, 200, 300));
}

TEST(KeyLists, WithoutHeads) {
  const Tensor<std::int32_t> index({1, 1, 2, 1});
  const Tensor<float> q({1, 0, 2, 8}), k({1, 1, 64, 8});
  Tensor<float> out(q.sizes()), lse({1, 0, 2}), dk(k.sizes());
  dk.data()[0] = 1;
  AttentionGradients<float> gradients;
  gradients.dk = dk;
  const AttentionOptions options{.mask = Mask::keys(index)};
  attention_forward(q, k, k, {.out = out, .lse = lse}, options);
  attention_backward(q, k, k, out, lse, out, gradients, options);
  EXPECT_EQ(dk.data()[0], 0);
}

TEST(KeyLists, Errors) {
  const auto call = [](const std::vector<std::int32_t>& keys, Index heads, Index q_len) {
    Tensor<std::int32_t> index({1, heads, q_len, static_cast<Index>(keys.size()) / heads / q_len});
    std::copy(keys.begin(), keys.end(), index.data());
    Tensor<float> q({1, 4, 2, 8}), k({1, 2, 6, 8}), out({1, 4, 2, 8});
    attention_forward(q, k, k, {.out = out}, {.mask = Mask::keys(index)});
  };
  call({0, 5, 3, -1}, 1, 2);
  call({0, 5, 3, -1, 1, 2, 4, 5}, 2, 2);
  EXPECT_THROW(call({0, 0, 3, -1}, 1, 2), OptionError) << "twice";
  EXPECT_THROW(call({0, 6, 3, -1}, 1, 2), OptionError) << "not below Tk";
  EXPECT_THROW(call({0, -2, 3, -1}, 1, 2), OptionError);
  EXPECT_THROW(call({0, 1, 2}, 3, 1), ShapeError) << "three lists for four heads, and one query of two";
  EXPECT_THROW(call({0, 1, 2}, 1, 3), ShapeError) << "three queries";
}

}  // namespace
}  // namespace qkv::test
