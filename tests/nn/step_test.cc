// A layer with a cache, step by step, gives what it gives for the whole sequence at once.
#include <gtest/gtest.h>

#include "nn_support.h"

namespace qkv {
namespace {

using test::random_tensor;

constexpr Index kStepDim = 12, kHeads = 4, kKvHeads = 2, kWidth = 6;

nn::GroupedQueryAttention made_layer() {
  nn::GroupedQueryAttention layer({.embed_dim = kStepDim,
      .num_heads = kHeads,
      .num_kv_heads = kKvHeads,
      .head_dim = kWidth,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .causal = true,
      .seed = 4});
  test::randomise(layer, 5);
  return layer;
}

/// Rows [begin, end) of x [B, T, E].
Tensor<float> rows_of(const Tensor<float>& x, Index begin, Index end) {
  Tensor<float> rows({x.size(0), end - begin, x.size(2)});
  for (Index b = 0; b < x.size(0); ++b) {
    std::copy_n(x.data() + (b * x.size(1) + begin) * x.size(2), rows.size(1) * x.size(2),
        rows.data() + b * rows.size(1) * x.size(2));
  }
  return rows;
}

/// The two differ in the order of their sums: 64 eps of the output projection's terms, |v| <= 1 + |x| |W_v| summed.
double bound_of(nn::AttentionLayer& layer) {
  double largest_out = 0, largest_value = 0;
  for (const nn::Parameter& one : layer.parameters()) {
    for (Index row = 0; one.sizes.size() == 2 && row < one.sizes[0]; ++row) {
      double sum = 0;
      for (Index n = 0; n < one.sizes[1]; ++n)
        sum += std::abs(static_cast<double>(one.value[static_cast<std::size_t>(row * one.sizes[1] + n)]));
      if (one.name == "v_proj.weight") largest_value = std::max(largest_value, sum);
      if (one.name == "o_proj.weight") largest_out = std::max(largest_out, sum);
    }
  }
  return 64 * static_cast<double>(std::numeric_limits<float>::epsilon()) * largest_out * (1 + largest_value);
}

void expect_close(const Tensor<float>& a, const Tensor<float>& b, double bound) {
  ASSERT_EQ(a.sizes(), b.sizes());
  for (Index n = 0; n < a.count(); ++n) ASSERT_NEAR(a.data()[n], b.data()[n], bound) << n;
}

struct CacheKind {
  std::string name;
  KVCacheConfig config;
  Mask mask{};  // of the whole sequence and of each step
};
std::vector<CacheKind> kinds(Index sequences) {
  const KVCacheConfig common{
      .num_kv_heads = kKvHeads, .head_dim = kWidth, .sequences = sequences, .max_sequences = sequences + 2};
  KVCacheConfig contiguous = common, ring = common, paged = common;
  contiguous.capacity = 40;
  ring.layout = CacheLayout::kRing, ring.window = 5, ring.max_append = 7;
  paged.layout = CacheLayout::kPaged, paged.page_size = 4, paged.pages = 60;
  return {{"contiguous", contiguous}, {"ring", ring, Mask::sliding(5, Align::kBottomRight)}, {"paged", paged}};
}

TEST(Step, ChunksAndSingleTokensAreTheWholeForward) {
  nn::GroupedQueryAttention layer = made_layer();
  const Tensor<float> x = random_tensor({2, 19, kStepDim}, 1);
  for (const CacheKind& kind : kinds(2)) {
    SCOPED_TRACE(kind.name);
    const Tensor<float> whole = layer.forward(x, {.mask = kind.mask});
    KVCache cache(kind.config);
    nn::StepMemory memory;
    Index at = 0;
    for (const Index count : {7, 1, 1, 3, 1, 6}) {
      const Tensor<float> part = rows_of(x, at, at + count);
      Tensor<float> y({2, count, kStepDim});
      layer.step(part, y, cache, memory, kind.mask);
      expect_close(y, rows_of(whole, at, at + count), bound_of(layer));
      at += count;
    }
    EXPECT_EQ(cache.length(0), 19);
  }
}

/// Sequences of a cache may have different lengths: each continues from its own position.
TEST(Step, SequencesOfDifferentLengths) {
  nn::GroupedQueryAttention layer = made_layer();
  const Tensor<float> x = random_tensor({2, 12, kStepDim}, 2);
  const Tensor<float> whole = layer.forward(x);
  KVCache cache(kinds(2)[2].config);
  nn::StepMemory memory;
  Tensor<float> y({2, 9, kStepDim}), next({2, 1, kStepDim});
  layer.step(rows_of(x, 0, 9), y, cache, memory);
  cache.truncate(1, 4);
  Tensor<float> tokens({2, 1, kStepDim});  // token 9 of sequence 0, token 4 of sequence 1
  std::copy_n(x.data() + 9 * kStepDim, kStepDim, tokens.data());
  std::copy_n(x.data() + (12 + 4) * kStepDim, kStepDim, tokens.data() + kStepDim);
  layer.step(tokens, next, cache, memory);
  for (Index e = 0; e < kStepDim; ++e) {
    EXPECT_NEAR(next.data()[e], whole.data()[9 * kStepDim + e], bound_of(layer));
    EXPECT_NEAR(next.data()[kStepDim + e], whole.data()[(12 + 4) * kStepDim + e], bound_of(layer));
  }
}

TEST(Step, MultiHeadHasItToo) {
  nn::MultiHeadAttention layer(
      {.embed_dim = kStepDim, .num_heads = 3, .residual_dropout = 0.0F, .causal = true, .seed = 9});
  const Tensor<float> x = random_tensor({1, 6, kStepDim}, 3);
  const Tensor<float> whole = layer.forward(x);
  KVCache cache({.num_kv_heads = 3, .head_dim = 4, .capacity = 6});
  nn::StepMemory memory;
  for (Index t = 0; t < 6; ++t) {
    Tensor<float> y({1, 1, kStepDim});
    layer.step(rows_of(x, t, t + 1), y, cache, memory);
    expect_close(y, rows_of(whole, t, t + 1), bound_of(layer) + 1e-5);
  }
}

TEST(Step, AFullCacheIsLeftAsItWas) {
  nn::GroupedQueryAttention layer = made_layer();
  KVCache cache({.num_kv_heads = kKvHeads, .head_dim = kWidth, .capacity = 3});
  nn::StepMemory memory;
  const Tensor<float> x = random_tensor({1, 2, kStepDim}, 3);
  Tensor<float> y({1, 2, kStepDim});
  layer.step(x, y, cache, memory);
  EXPECT_THROW(layer.step(x, y, cache, memory), CacheFullError);
  EXPECT_EQ(cache.length(0), 2);
  KVCache other({.num_kv_heads = 1, .head_dim = kWidth, .capacity = 3});
  EXPECT_THROW(layer.step(x, y, other, memory), ShapeError);
  KVCache more({.num_kv_heads = kKvHeads, .head_dim = kWidth, .sequences = 2, .capacity = 3});
  EXPECT_THROW(layer.step(x, y, more, memory), ShapeError);
}

TEST(Step, ARowWithoutKeysIsTheLayers) {
  const std::vector<Index> starts{1};
  const Tensor<float> x = random_tensor({1, 1, kStepDim}, 3);
  for (const EmptyRow empty : {EmptyRow::kZero, EmptyRow::kMean, EmptyRow::kNaN}) {
    nn::GroupedQueryAttention layer({.embed_dim = kStepDim, .num_heads = 2, .empty_row = empty});
    KVCache cache({.num_kv_heads = 2, .head_dim = kWidth, .capacity = 3});
    nn::StepMemory memory;
    Tensor<float> y({1, 1, kStepDim});
    layer.step(x, y, cache, memory, Mask::key_starts(starts));
    for (const float one : y.span()) EXPECT_TRUE(empty == EmptyRow::kNaN ? std::isnan(one) : one == 0) << one;
  }
}

}  // namespace
}  // namespace qkv
