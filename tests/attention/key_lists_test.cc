// Calls that read only the keys that a mask lists: against the textbook, forward, backward, on caches; their bits; NaN in keys
// that are not listed. Not: the leaf itself (mask/mask_algebra_test.cc), lists beside other options, which tiles compute
// (cases_test.cc).
#include <gtest/gtest.h>

#include "support/cases/cached_case.h"
#include "support/checks/check_cached.h"
#include "support/checks/check_case.h"

namespace qkv::test {
namespace {

template <class T>
class KeyListsCall : public testing::Test {};
TYPED_TEST_SUITE(KeyListsCall, StorageTypes);

/// Index [B, lists, Tq, k] of ascending keys: those of a row are `step` or more apart, the row's number decides where they begin.
/// Row 1 lists nothing, row 2 one key.
Tensor<std::int32_t> lists(Index batch, Index heads, Index q_len, Index kv_len, Index width) {
  Tensor<std::int32_t> index({batch, heads, q_len, width});
  const Index step = kv_len / width;
  for (Index row = 0; row < batch * heads * q_len; ++row) {
    const Index wanted = row % q_len == 1 ? 0 : row % q_len == 2 ? 1 : width;
    for (Index n = 0; n < width; ++n) {
      index.data()[row * width + n] = n < wanted ? static_cast<std::int32_t>(n * step + (row * 7 + n) % step) : -1;
    }
  }
  return index;
}

/// 1 where listed.
Tensor<std::uint8_t> dense_of(const Tensor<std::int32_t>& index, Index num_heads, Index kv_len) {
  const Index batch = index.size(0), q_len = index.size(2);
  Tensor<std::uint8_t> keep({batch, num_heads, q_len, kv_len});
  mask_to_dense(Mask::keys(index), keep);
  return keep;
}

struct Shape {
  Index batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, v_head_dim, lists, width;
};
/// One query and many, shared lists and each head's, groups for decode's kernel and for the tiled one, parts of lists.
const std::vector<Shape> kShapes = {{2, 4, 2, 1, 200, 20, 12, 1, 30},   {1, 8, 1, 1, 3000, 16, 16, 1, 1300},
                                    {1, 4, 4, 5, 300, 9, 9, 4, 20},     {2, 8, 2, 70, 260, 24, 40, 2, 21},
                                    {1, 24, 1, 40, 250, 20, 16, 1, 25}, {1, 40, 1, 3, 150, 72, 64, 1, 17},
                                    {1, 6, 2, 30, 400, 33, 17, 6, 15},  {1, 9, 1, 33, 700, 64, 64, 1, 110},
                                    {3, 2, 1, 9, 128, 130, 128, 1, 6},  {1, 16, 1, 20, 2300, 128, 128, 1, 300}};

AttentionCase case_of_shape(const Shape& s) {
  AttentionCase made;
  made.batch = s.batch, made.num_heads = s.num_heads, made.num_kv_heads = s.num_kv_heads;
  made.q_len = s.q_len, made.kv_len = s.kv_len, made.head_dim = s.head_dim, made.v_head_dim = s.v_head_dim;
  made.seed = static_cast<std::uint64_t>(s.kv_len + s.num_heads);
  return made;
}

/// The problem of a shape under its lists; NaN in every key and value that no query of the group lists.
template <class T>
struct ListedProblem : Problem<T> {
  Tensor<std::int32_t> index;
  Tensor<std::uint8_t> keep;

  explicit ListedProblem(const Shape& s, AttentionCase made)
      : Problem<T>(made),
        index(lists(s.batch, s.lists, s.q_len, s.kv_len, s.width)),
        keep(dense_of(index, s.num_heads, s.kv_len)) {
    const View<std::uint8_t, 4> kept = keep;
    this->options.mask = Mask::keys(index);
    this->mask = {this->options.mask, [kept](Index b, Index h, Index i, Index j) { return kept(b, h, i, j) != 0; }};
    const Index group = s.num_heads / s.num_kv_heads;
    for (Index b = 0; b < s.batch; ++b) {
      for (Index h = 0; h < s.num_heads; h += group) {
        for (Index j = 0; j < s.kv_len; ++j) {
          bool read = false;
          for (Index r = h; r < h + group; ++r) {
            for (Index i = 0; i < s.q_len; ++i) read |= kept(b, r, i, j) != 0;
          }
          if (read) continue;
          for (Index d = 0; d < s.head_dim; ++d) this->k()(b, h / group, j, d) = kQuietNan<T>;
          for (Index d = 0; d < s.v_head_dim; ++d) this->v()(b, h / group, j, d) = kQuietNan<T>;
        }
      }
    }
  }
  ListedProblem(const ListedProblem&) = delete;
};

TYPED_TEST(KeyListsCall, ForwardAndBackwardAreTheTextbooks) {
  using T = TypeParam;
  Worst worst;
  std::uint64_t number = 0;
  for (const Shape& s : kShapes) {
    AttentionCase made = case_of_shape(s);
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
        for (const Shape& s : {kShapes[0], kShapes[3], kShapes[4]}) {
          const ListedProblem<T> listed(s, case_of_shape(s));
          AttentionCase made = case_of_shape(s);
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
  for (const Shape& s : kShapes) {
    const ListedProblem<T> problem(s, case_of_shape(s));
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
  for (const Shape& s : kShapes) {
    const ListedProblem<T> problem(s, case_of_shape(s));
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
  for (const Shape& s : kShapes) {
    const ListedProblem<T> problem(s, case_of_shape(s));
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
  const Shape s{2, 4, 2, 40, 150, 20, 20, 2, 90};
  const ListedProblem<T> problem(s, case_of_shape(s));
  for_each_isa(2, [&](Context& context) {
    const auto run = [&](const Mask& mask) {
      return Answer<T>(problem.q(), problem.k(), problem.v(), AttentionOptions{.mask = mask}, context);
    };
    ASSERT_EQ(attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm, "tiled");
    EXPECT_TRUE(run(problem.options.mask) == run(Mask::keep(problem.keep)));
  });
}

TEST(KeyLists, JoinedMasksFilter) {
  const Shape s{1, 8, 1, 60, 200, 16, 16, 1, 20};
  AttentionCase made = case_of_shape(s);
  ListedProblem<float> problem(s, made);
  const Mask causal = Mask::causal(Align::kBottomRight);
  problem.options.mask = causal & Mask::keys(problem.index);
  problem.mask = {problem.options.mask,
                  [keep = problem.mask.keep](Index b, Index h, Index i, Index j) { return j <= i + 140 && keep(b, h, i, j); }};
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
