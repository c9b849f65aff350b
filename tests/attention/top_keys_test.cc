// top_keys against a sort of all scores. Small whole numbers make scores exact and equal ones frequent.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "qkv/qkv.h"
#include "support/isas.h"
#include "support/random.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

template <class T> class TopKeys : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(TopKeys, Types);

struct Sizes {
  Index batch, heads, q_len, kv_len, width, count;
};

template <class T> struct Indexer {
  Tensor<T> q, k;
  Tensor<float> weights;

  explicit Indexer(const Sizes& s, std::uint64_t seed)
      : q({s.batch, s.heads, s.q_len, s.width}), k({s.batch, s.kv_len, s.width}), weights({s.batch, s.heads, s.q_len}) {
    Random random(seed);
    const auto fill = [&](auto& tensor) {
      for (auto& x : tensor.span())
        x = static_cast<std::remove_reference_t<decltype(x)>>(static_cast<float>(random.below(5) - 2));
    };
    fill(q), fill(k), fill(weights);
  }

  /// The k best of the kept keys, ascending by key, then -1.
  std::vector<std::int32_t> expected(Index b, Index i, Index count, const Mask& mask) const {
    Tensor<std::uint8_t> keep({q.size(0), 1, q.size(2), k.size(1)});
    mask_to_dense(mask, keep);
    std::vector<double> scores(static_cast<std::size_t>(k.size(1)));
    std::vector<std::int32_t> keys;
    for (Index j = 0; j < k.size(1); ++j) {
      for (Index h = 0; h < q.size(1); ++h) {
        double dot = 0;
        for (Index d = 0; d < q.size(3); ++d) {
          dot += static_cast<double>(static_cast<float>(q.template view<4>()(b, h, i, d))) *
                 static_cast<double>(static_cast<float>(k.template view<3>()(b, j, d)));
        }
        scores[static_cast<std::size_t>(j)] += static_cast<double>(weights.view<3>()(b, h, i)) * std::max(dot, 0.0);
      }
      if (keep.view<4>()(b, 0, i, j) != 0) keys.push_back(static_cast<std::int32_t>(j));
    }
    std::ranges::stable_sort(keys, [&](std::int32_t x, std::int32_t y) {
      return scores[static_cast<std::size_t>(x)] > scores[static_cast<std::size_t>(y)];
    });
    keys.resize(std::min(keys.size(), static_cast<std::size_t>(count)));
    std::ranges::sort(keys);
    keys.resize(static_cast<std::size_t>(count), -1);
    return keys;
  }
};

TYPED_TEST(TopKeys, AreThoseOfASort) {
  using T = TypeParam;
  const std::vector<Sizes> sizes = {{1, 1, 1, 1, 1, 1}, {2, 3, 5, 17, 4, 3}, {1, 64, 2, 300, 16, 40},
      {2, 4, 70, 70, 8, 9}, {1, 2, 40, 513, 24, 600}, {1, 8, 1, 9000, 8, 100}, {2, 2, 3, 0, 8, 2}};
  std::uint64_t seed = 1;
  for (const Sizes& s : sizes) {
    const Indexer<T> indexer(s, seed++);
    for (const Mask& mask : {Mask(), Mask::causal(Align::kBottomRight), Mask::window(20, 3, Align::kTopLeft)}) {
      std::vector<Tensor<std::int32_t>> found;
      for_each_isa(1, [&](Context& context) {
        Tensor<std::int32_t> index({s.batch, 1, s.q_len, s.count});
        top_keys(indexer.q, indexer.k, indexer.weights, index, {.mask = mask}, context);
        for (Index b = 0; b < s.batch; ++b) {
          for (Index i = 0; i < s.q_len; ++i) {
            const std::int32_t* row = &index.view<4>()(b, 0, i, 0);
            EXPECT_EQ(std::vector<std::int32_t>(row, row + s.count), indexer.expected(b, i, s.count, mask))
                << mask.describe() << ", sequence " << b << ", query " << i << " of " << s.q_len << " x " << s.kv_len;
          }
        }
        found.push_back(std::move(index));
      });
      Context more({.threads = 3});
      Tensor<std::int32_t> index({s.batch, 1, s.q_len, s.count});
      top_keys(indexer.q, indexer.k, indexer.weights, index, {.mask = mask}, more);
      EXPECT_TRUE(std::ranges::equal(index.span(), found.front().span())) << "three threads";
    }
  }
}

TEST(TopKeysOfNan, ReachesTheOutput) {
  Tensor<float> q({1, 1, 1, 2}), k({1, 9, 2}), weights({1, 1, 1});
  for (float& x : q.span()) x = 1;
  for (float& x : weights.span()) x = 1;
  k.view<3>()(0, 7, 1) = std::numeric_limits<float>::quiet_NaN();
  k.view<3>()(0, 2, 1) = 5;
  Tensor<std::int32_t> index({1, 1, 1, 2});
  top_keys(q, k, weights, index);
  EXPECT_EQ(index.data()[0], 2);
  EXPECT_EQ(index.data()[1], 7);
}

TEST(TopKeysErrors, NameWhatDiffers) {
  Tensor<float> q({1, 2, 3, 4}), k({1, 5, 4}), narrow({1, 5, 3}), weights({1, 2, 3}), few({1, 2, 2});
  Tensor<std::int32_t> index({1, 1, 3, 2}), none({1, 1, 3, 0}), heads({1, 2, 3, 2});
  top_keys(q, k, weights, index);
  EXPECT_THROW(top_keys(q, narrow, weights, index), ShapeError);
  EXPECT_THROW(top_keys(q, k, few, index), ShapeError);
  EXPECT_THROW(top_keys(q, k, weights, none), ShapeError);
  EXPECT_THROW(top_keys(q, k, weights, heads), ShapeError);
  EXPECT_THROW(top_keys(q, k, weights, index, {.mask = Mask::causal()}), OptionError) << "Tq and Tk differ";
}

}  // namespace
}  // namespace qkv::test
