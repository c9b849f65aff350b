// Masks of layers by the number of their axes, weights on request, empty rows, the position of dropout, and the two
// lessons of the ladder.
#include <gtest/gtest.h>

#include "nn_support.h"

namespace qkv {
namespace {

using test::random_tensor;
using test::same_bits;

constexpr Index kBatch = 2, kLength = 3, kDim = 4;

/// A ragged batch: the second sequence has two tokens.
Tensor<std::uint8_t> ragged(std::vector<Index> sizes) {
  Tensor<std::uint8_t> keep(sizes);
  for (Index n = 0; n < keep.count(); ++n) {
    const bool second = n / (keep.count() / kBatch) == 1;
    keep.data()[n] = !second || n % kLength < 2;
  }
  return keep;
}

Tensor<std::uint8_t> inverted(const Tensor<std::uint8_t>& keep) {
  Tensor<std::uint8_t> drop(keep.sizes());
  for (Index n = 0; n < keep.count(); ++n) drop.data()[n] = keep.data()[n] == 0;
  return drop;
}

TEST(LayerMask, EveryRankMeansTheSame) {
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  const std::vector<Index> lengths = {3, 2};
  for (const std::string_view name : {"v1", "mha"}) {
    const auto layer = nn::make_layer(name, {.embed_dim = kDim, .num_heads = name == "mha" ? 2 : 1, .seed = 1});
    const Tensor<float> expected = layer->forward(x, {.mask = Mask::key_lengths(lengths)});
    std::vector<std::vector<Index>> shapes = {{kBatch, kLength}, {kBatch, 1, kLength, kLength}};
    if (name == "v1") shapes.push_back({kBatch, kLength, kLength});
    if (name == "mha") shapes.push_back({kBatch, 2, kLength, kLength});
    for (const auto& shape : shapes) {
      const Tensor<std::uint8_t> keep = ragged(shape), drop = inverted(keep);
      EXPECT_TRUE(same_bits(expected, layer->forward(x, {.mask = layer->keep(keep)})));
      EXPECT_TRUE(same_bits(expected, layer->forward(x, {.mask = layer->drop(drop)})));
    }
    EXPECT_FALSE(same_bits(expected, layer->forward(x)));
  }
}

TEST(LayerMask, OtherRanksAreRefused) {
  const auto v1 = nn::make_layer("v1", {.embed_dim = kDim});
  const auto mha = nn::make_layer("mha", {.embed_dim = kDim, .num_heads = 1});
  EXPECT_EQ(test::text_of<ShapeError>([&] {
    v1->keep(Tensor<std::uint8_t>({2, 2, 3, 3}));
  }),
      "[v1] a mask must be [B, Tk], [B, Tq, Tk] or [B, 1, Tq, Tk], or its axes must be named: got [2, 2, 3, 3]");
  EXPECT_EQ(test::text_of<ShapeError>([&] {
    mha->drop(Tensor<std::uint8_t>({2, 3, 3}));
  }),
      "[mha] a mask must be [B, Tk] or [B|1, H|1, Tq|1, Tk|1], or its axes must be named: got [2, 3, 3]");
}

/// With as many sequences as tokens [T, T] is both [B, Tk] and [Tq, Tk]: a guess would be silent.
TEST(LayerMask, ASquareOneMustNameItsAxes) {
  const Tensor<float> x = random_tensor({kLength, kLength, kDim}, 1);
  Tensor<std::uint8_t> keep({kLength, kLength});
  for (Index i = 0; i < kLength; ++i) {
    for (Index j = 0; j <= i; ++j) keep.view<2>()(i, j) = 1;
  }
  const Tensor<std::uint8_t> drop = inverted(keep);
  const std::vector<Index> lengths = {1, 2, 3};
  for (const std::string_view name : {"v1", "mha"}) {
    const auto layer = nn::make_layer(name, {.embed_dim = kDim, .num_heads = 2, .seed = 1});
    const std::string text =
        "[" + std::string(name) +
        "] a square mask fits [B, Tk] and [Tq, Tk]: name its axes with MaskAxes::kBk or MaskAxes::kQk: got [3, 3]";
    EXPECT_EQ(test::text_of<ShapeError>([&] { layer->keep(keep); }), text);
    EXPECT_EQ(test::text_of<ShapeError>([&] { layer->drop(drop); }), text);
    const Tensor<float> causal = layer->forward(x, {.causal = true});
    const Tensor<float> padded = layer->forward(x, {.mask = Mask::key_lengths(lengths)});
    EXPECT_TRUE(same_bits(causal, layer->forward(x, {.mask = Mask::keep(keep, MaskAxes::kQk)})));
    EXPECT_TRUE(same_bits(causal, layer->forward(x, {.mask = Mask::drop(drop, MaskAxes::kQk)})));
    EXPECT_TRUE(same_bits(padded, layer->forward(x, {.mask = Mask::keep(keep, MaskAxes::kBk)})));
    EXPECT_TRUE(same_bits(padded, layer->forward(x, {.mask = Mask::drop(drop, MaskAxes::kBk)})));
  }
  const auto one = nn::make_layer("v1", {.embed_dim = kDim});  // one token of one sequence: both readings are the same
  EXPECT_FALSE(one->keep(Tensor<std::uint8_t>({1, 1})).keeps_everything());
}

TEST(LayerMask, AnErrorShowsTheShapeThatCame) {
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  const nn::SelfAttentionV1 layer({.embed_dim = kDim});
  const auto refusal = [&](std::vector<Index> sizes, MaskAxes axes) {
    const Tensor<std::uint8_t> keep(sizes);
    return test::text_of<ShapeError>([&] { layer.forward(x, {.mask = Mask::keep(keep, axes)}); });
  };
  const std::string sizes = " for [B, H, Tq, Tk] [2, 1, 3, 3]";
  EXPECT_EQ(refusal({6, 5}, MaskAxes::kBk),
      "[attention_forward] a dense mask must have sizes [B|1, Tk|1]: got [6, 5]" + sizes);
  EXPECT_EQ(refusal({6, 6}, MaskAxes::kQk),
      "[attention_forward] a dense mask must have sizes [Tq|1, Tk|1]: got [6, 6]" + sizes);
  EXPECT_EQ(refusal({6, 3, 3}, MaskAxes::kBqk),
      "[attention_forward] a dense mask must have sizes [B|1, Tq|1, Tk|1]: got [6, 3, 3]" + sizes);
  EXPECT_EQ(refusal({6, 3, 3}, MaskAxes::kHqk),
      "[attention_forward] a dense mask must have sizes [H|1, Tq|1, Tk|1]: got [6, 3, 3]" + sizes);
}

TEST(LayerMask, MeetsTheLayersCausalMask) {
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  const std::vector<Index> lengths = {1, 2};
  const nn::SingleHeadAttention layer({.embed_dim = kDim});
  const Mask both = Mask::causal() & Mask::key_lengths(lengths);
  const Tensor<float> expected = layer.forward(x, {.mask = both, .causal = false});
  EXPECT_TRUE(same_bits(expected, layer.forward(x, {.mask = Mask::key_lengths(lengths)})));
  EXPECT_FALSE(same_bits(expected, layer.forward(x)));
  EXPECT_FALSE(same_bits(expected, layer.forward(x, {.mask = Mask::key_lengths(lengths), .causal = false})));
}

TEST(LayerMask, EmptyRowsByOption) {
  Tensor<std::uint8_t> keep({kBatch, kLength});
  for (Index j = 0; j < kLength; ++j) keep.view<2>()(0, j) = 1;  // the second sequence has no key
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  const nn::MultiHeadAttention mha({.embed_dim = kDim, .num_heads = 2});
  Tensor<float> weights;
  mha.forward(x, {.mask = mha.keep(keep), .weights = &weights});
  EXPECT_EQ(weights.view<4>()(1, 0, 0, 0), 1.0F / 3);
  mha.forward(x, {.mask = mha.keep(keep), .empty_row = EmptyRow::kNaN, .weights = &weights});
  EXPECT_TRUE(std::isnan(weights.view<4>()(1, 1, 2, 0)));
  mha.forward(x, {.mask = mha.keep(keep), .empty_row = EmptyRow::kZero, .weights = &weights});
  EXPECT_EQ(weights.view<4>()(1, 1, 2, 0), 0.0F);
}

TEST(Weights, AskingChangesNothingAndAppliedIsAfterDropout) {
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  nn::MultiHeadAttention mha({.embed_dim = kDim, .num_heads = 2, .dropout = 0.5F, .residual_dropout = 0});
  mha.train();
  Tensor<float> weights, applied, factors({kBatch, 2, kLength, kLength});
  const Tensor<float> plain = mha.forward(x, {.seed = 3});
  const Tensor<float> asked = mha.forward(x, {.seed = 3, .weights = &weights, .applied = &applied});
  EXPECT_TRUE(same_bits(plain, asked));
  dropout_factors({.p = 0.5, .seed = 3, .training = true}, factors.view<4>());
  bool dropped = false;
  for (Index n = 0; n < weights.count(); ++n) {
    EXPECT_EQ(applied.data()[n], weights.data()[n] * factors.data()[n]);
    dropped = dropped || factors.data()[n] == 0;
  }
  EXPECT_TRUE(dropped);
}

TEST(Dropout, OneSequenceAloneRepeatsItsPlace) {
  const Tensor<float> x = random_tensor({kBatch, kLength, kDim}, 1);
  nn::MultiHeadAttention mha({.embed_dim = kDim, .num_heads = 2, .dropout = 0.5F, .residual_dropout = 0.5F});
  mha.train();
  const Tensor<float> both = mha.forward(x, {.seed = 3});
  const Tensor<float> alone = mha.forward(x.view<3>().sliced(0, 1, 2), {.seed = 3, .first_sequence = 1});
  int zeros = 0;
  for (Index n = 0; n < alone.count(); ++n) {
    EXPECT_NEAR(alone.data()[n], both.data()[alone.count() + n], 16 * std::numeric_limits<float>::epsilon());
    zeros += alone.data()[n] == 0;
  }
  EXPECT_GT(zeros, 0);
  EXPECT_LT(zeros, alone.count());
}

TEST(Options, ImpossibleOnesAreNamed) {
  EXPECT_EQ(test::text_of<OptionError>([] { nn::MultiHeadAttention({.embed_dim = 10, .num_heads = 3}); }),
      "[MultiHeadAttention] num_heads must divide embed_dim: got 3 heads for 10");
  EXPECT_EQ(test::text_of<OptionError>([] { nn::SelfAttentionV3({.embed_dim = 4, .dropout = 1.5F}); }),
      "[SelfAttentionV3] dropout p must be in [0, 1]: got 1.5");
  EXPECT_EQ(test::text_of<OptionError>([] { nn::MultiHeadAttention({.embed_dim = 8}); }),
      "[MultiHeadAttention] num_heads must be given, at least 1: got 0");
  EXPECT_EQ(test::text_of<OptionError>([] { nn::GroupedQueryAttention({.embed_dim = 8}); }),
      "[GroupedQueryAttention] num_heads must be given, at least 1: got 0");
  EXPECT_THROW(nn::SelfAttentionV1({}), ShapeError);
  EXPECT_THROW(nn::FixedWeights({}), ShapeError);
  EXPECT_EQ(test::text_of<OptionError>([] { nn::make_layer("v5", {}); }),
      "[make_layer] the layer must be one of average, fixed-weights, v1, v2, v3, v4, self-attention, single-head, mha, "
      "grouped-query: got v5");
}

// "I like the blue sky" and "I like the red sky": fixed weights give the fourth word the same share of the others
// whichever word it is; attention does not.
TEST(Ladder, FixedWeightsCannotTellBlueFromRed) {
  Tensor<float> sentences = random_tensor({2, 5, kDim}, 1);
  for (Index t = 0; t < 5; ++t) {
    for (Index e = 0; e < kDim; ++e) {
      if (t != 3) sentences.view<3>()(1, t, e) = sentences.view<3>()(0, t, e);
    }
  }
  const auto rows_equal = [&](const nn::Layer& layer) {
    Tensor<float> weights;
    layer.forward(sentences, {.weights = &weights});
    return same_bits(weights.span().subspan(15, 5), weights.span().subspan(25 + 15, 5));
  };
  EXPECT_TRUE(rows_equal(nn::AveragePooling()));
  EXPECT_TRUE(rows_equal(nn::FixedWeights({.length = 5})));
  EXPECT_FALSE(rows_equal(nn::SelfAttentionV1({.embed_dim = kDim})));
}

TEST(Init, TorchMultiheadAttention) {
  nn::MultiHeadAttention mha({.embed_dim = 64, .num_heads = 4, .init = nn::Init::kTorchMha, .seed = 2});
  const double xavier = std::sqrt(6.0 / (3 * 64 + 64)), linear = 1 / std::sqrt(64.0);
  for (const nn::Parameter& one : mha.parameters()) {
    const double largest = test::moments_of(one.value).largest;
    if (one.name.ends_with("bias")) {
      EXPECT_EQ(largest, 0) << one.name;
      continue;
    }
    const double bound = one.name == "o_proj.weight" ? linear : xavier;
    EXPECT_LE(largest, bound) << one.name;
    EXPECT_GE(largest, 0.99 * bound) << one.name;
  }
}

}  // namespace
}  // namespace qkv
