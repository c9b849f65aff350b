// Calls that read only the keys that a mask lists: which they are, a row's bits, caches in 8 bits. The textbook and the
// other relations: relations_test.cc, the forms of lists.
#include <gtest/gtest.h>

#include "support/cases/cached_case.h"
#include "support/cases/listed_case.h"
#include "support/checks/check_cached.h"

namespace qkv::test {
namespace {

template <class T> class KeyListsCall : public testing::Test {};
using ListTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(KeyListsCall, ListTypes);

std::string algorithm_of(const AttentionPlan& plan) { return plan.algorithm; }

TEST(KeyLists, OnCachesOfEveryLayoutAreReadAlone) {
  Worst worst;
  for (const CacheKind kind : kLayouts) {
    for (const std::size_t n : {0U, 3U, 4U}) {
      const CacheStorage storage = n == 3 ? CacheStorage::kInt4 : CacheStorage::kInt8;
      AttentionCase made = list_cases()[n];
      made.fill = Fill::kUniform;  // integers hold no NaN
      check_cached<float>(
          made, kind, storage, std::vector(static_cast<std::size_t>(made.batch), made.kv_len), 2, worst);
      const Problem<float> problem(made);
      const KVCache cache = cache_of(kind, storage, problem.k(), problem.v());
      for_each_isa(2, [&](Context& context) {
        EXPECT_EQ(algorithm_of(attention_plan(problem.q(), cache.key_value(), problem.options, context)), "lists");
      });
    }
  }
  worst.print("lists of keys on caches");
}

TYPED_TEST(KeyListsCall, ARowHasTheBitsThatItHasAlone) {
  using T = TypeParam;
  for (const AttentionCase& s : list_cases()) {
    const Problem<T> problem(s);
    Context context({.threads = 2});
    const auto run = [&](const View<const T, 4>& q, const Mask& mask) {
      return Answer<T>(q, problem.k(), problem.v(), AttentionOptions{.mask = mask}, context);
    };
    EXPECT_EQ(algorithm_of(attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context)), "lists");
    const Answer<T> all = run(problem.q(), problem.options.mask);
    const View<const std::int32_t, 4> index = *problem.mask.index;
    Tensor<std::int32_t> backwards({index.size(0), index.size(1), index.size(2), index.size(3) + 1});
    for (Index row = 0; row < index.count() / s.list_width; ++row) {
      std::int32_t* const to = backwards.data() + row * (s.list_width + 1);
      to[0] = -1;
      std::reverse_copy(index.data() + row * s.list_width, index.data() + (row + 1) * s.list_width, to + 1);
    }
    EXPECT_TRUE(run(problem.q(), Mask::keys(backwards)) == all) << "order of the keys";
    if (s.q_len * s.num_heads / s.num_kv_heads <= 16 || s.q_len < 4)
      continue;  // a row alone is one of few, and may take decode
    const Index i = 3;
    const Answer<T> one = run(problem.q().sliced(2, i, i + 1), Mask::keys(index.sliced(2, i, i + 1)));
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

// With invariant bits a list is a mask like any other, and so are lists that are not short: the bits of the dense mask.
TYPED_TEST(KeyListsCall, TilesGiveTheBitsOfTheDenseMask) {
  using T = TypeParam;
  std::vector<AttentionCase> cases = list_cases();
  cases.push_back(long_list_cases()[0]);
  for (const AttentionCase& s : cases) {
    const Problem<T> problem(s);
    for_each_isa(2, [&](Context& context) {
      const Bits bits = s.kv_len == 128 && s.q_len == 40 ? Bits::kFast : Bits::kInvariant;
      AttentionOptions options{.mask = problem.options.mask, .bits = bits};
      const Answer<T> by_lists(problem.q(), problem.k(), problem.v(), options, context);
      ASSERT_EQ(algorithm_of(attention_plan(problem.q(), problem.k(), problem.v(), options, context)), "tiled");
      options.mask = Mask::keep(View<const std::uint8_t, 4>(*problem.mask.dense));
      EXPECT_TRUE(Answer<T>(problem.q(), problem.k(), problem.v(), options, context) == by_lists);
    });
  }
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
  EXPECT_FALSE(may_keep(200, 1000, -5, 200)) << "what lies outside the sizes does not count";
  EXPECT_TRUE(may_keep(-7, 1000, -5, 1));
  EXPECT_FALSE(may_keep(300, 400, 0, 300) || may_keep(-9, 0, 0, 300) || may_keep(0, 300, 300, 900));
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
