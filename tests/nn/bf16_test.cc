// Layers on bf16 are, bit for bit, the calls that they are made of: linear maps of rounded weights and attention on
// bf16, whose bounds are tested by themselves (linear_test.cc, tests/attention).
#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "qkv/error.h"
#include "support/isas.h"

namespace qkv {
namespace {

using test::random_tensor;
using test::same_bits;

constexpr Index kBatch = 2, kLength = 21, kDim = 48, kHeads = 4;

using test::random_bf16;

Tensor<BFloat16> rounded(std::span<const float> values, std::vector<Index> sizes) {
  Tensor<float> tensor(std::move(sizes));
  std::ranges::copy(values, tensor.data());
  return test::converted<BFloat16>(tensor);
}
View<const BFloat16, 2> rows_of(const Tensor<BFloat16>& x) { return nn::as_rows(x); }
View<BFloat16, 2> rows_of(Tensor<BFloat16>& x) { return nn::as_rows(x); }

std::unique_ptr<nn::Layer> multi_head() {
  auto layer = nn::make_layer("mha", {.embed_dim = kDim, .num_heads = kHeads, .causal = true});
  test::randomise(*layer, 4);
  return layer;
}

TEST(Bf16Layer, IsTheCallsThatItIsMadeOf) {
  test::for_each_isa(2, [](Context& context) {
    const auto layer = multi_head();
    const Tensor<BFloat16> x = random_bf16({kBatch, kLength, kDim}, 1), dy = random_bf16({kBatch, kLength, kDim}, 2);
    Tensor<BFloat16> y({kBatch, kLength, kDim}), dx({kBatch, kLength, kDim});
    nn::Bf16Saved saved;
    layer->forward_into(x, y, {.context = &context}, &saved);
    layer->backward_into(dy, saved, dx, context);
    const std::vector<nn::Parameter> p = layer->parameters();  // weight and bias of q, k, v and the output
    ASSERT_EQ(p.size(), 8U);
    const auto stacked = [&](std::size_t first, auto member) {  // of q, k and v: one matrix
      std::vector<float> all;
      for (std::size_t n = first; n < 6; n += 2) all.insert(all.end(), (p[n].*member).begin(), (p[n].*member).end());
      return all;
    };
    const std::vector<float> in_bias = stacked(1, &nn::Parameter::value);
    const Tensor<BFloat16> in = rounded(stacked(0, &nn::Parameter::value), {3 * kDim, kDim}),
                           out = rounded(p[6].value, p[6].sizes);

    Tensor<BFloat16> projected({kBatch, kLength, 3 * kDim}), attended({kBatch, kLength, kDim}), expected_y(y.sizes());
    Tensor<float> lse({kBatch, kHeads, kLength});
    const auto part = [](Tensor<BFloat16>& of, Index n) {
      return split_heads(View<BFloat16, 3>(of).sliced(2, n * kDim, (n + 1) * kDim), kHeads);
    };
    const AttentionOptions options{.mask = Mask::causal(), .empty_row = EmptyRow::kMean};
    nn::linear_forward(
        rows_of(x), in.view<2>(), View<const float, 1>(in_bias.data(), {3 * kDim}), rows_of(projected), context);
    attention_forward(part(projected, 0), part(projected, 1), part(projected, 2),
        {.out = part(attended, 0), .lse = lse}, options, context);
    nn::linear_forward(rows_of(attended), out.view<2>(), View<const float, 1>(p[7].value.data(), {kDim}),
        rows_of(expected_y), context);
    EXPECT_TRUE(same_bits(y.span(), expected_y.span()));

    Tensor<BFloat16> dattended(attended.sizes()), dprojected(projected.sizes()), expected_dx(dx.sizes());
    Tensor<float> din(in.sizes()), din_bias({3 * kDim}), dout(out.sizes()), dout_bias({kDim});
    nn::linear_backward(rows_of(attended), rows_of(dy), out.view<2>(), rows_of(dattended), dout.view<2>(),
        dout_bias.view<1>(), context);
    attention_backward(part(projected, 0), part(projected, 1), part(projected, 2), part(attended, 0), lse,
        part(dattended, 0), {.dq = part(dprojected, 0), .dk = part(dprojected, 1), .dv = part(dprojected, 2)}, options,
        context);
    nn::linear_backward(rows_of(x), rows_of(dprojected), in.view<2>(), rows_of(expected_dx), din.view<2>(),
        din_bias.view<1>(), context);
    EXPECT_TRUE(same_bits(dx.span(), expected_dx.span()));
    std::vector<float> din_got = stacked(0, &nn::Parameter::gradient), bias_got = stacked(1, &nn::Parameter::gradient);
    EXPECT_TRUE(same_bits(std::span<float>(din_got), din.span()));
    EXPECT_TRUE(same_bits(std::span<float>(bias_got), din_bias.span()));
    EXPECT_TRUE(same_bits(p[6].gradient, dout.span()));
    EXPECT_TRUE(same_bits(p[7].gradient, dout_bias.span()));
  });
}

/// Every rounding to bf16 on the way to y, projections, norms, rotary positions, attention, changes a number by at most
/// 2^-9 of its size; so y is within a few of them of the float layer's, in the norm over all of y, and not closer than
/// one.
TEST(Bf16Layer, IsWithinItsRoundingsOfTheFloatLayer) {
  nn::GroupedQueryAttention layer({.embed_dim = kDim,
      .num_heads = kHeads,
      .num_kv_heads = 2,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .dropout = 0.2F,
      .residual_dropout = 0.2F,
      .seed = 3});
  layer.train();
  const Tensor<BFloat16> x = random_bf16({kBatch, kLength, kDim}, 1), dy = random_bf16({kBatch, kLength, kDim}, 2);
  const auto distance = [](const Tensor<BFloat16>& got, const Tensor<float>& expected) {
    return test::distance(got.span(), expected.span());
  };
  nn::Saved saved;
  const Tensor<float> y = layer.forward(test::converted<float>(x), {.seed = 5, .positions = {.offset = 2}}, &saved);
  const Tensor<float> dx = layer.backward(test::converted<float>(dy), saved);
  StateDict float_gradients = layer.gradients();
  layer.zero_gradients();
  nn::Bf16Saved bf16_saved;
  const Tensor<BFloat16> bf16_y = layer.forward(x, {.seed = 5, .positions = {.offset = 2}}, &bf16_saved);
  const Tensor<BFloat16> bf16_dx = layer.backward(dy, bf16_saved);
  constexpr double kForward = 8 * 0x1p-9, kBackward = 16 * 0x1p-9;  // roundings on the way, forward; and back
  EXPECT_LT(distance(bf16_y, y), kForward);
  EXPECT_GT(distance(bf16_y, y), 0x1p-12);
  EXPECT_LT(distance(bf16_dx, dx), kBackward);
  EXPECT_FALSE(same_bits(float_gradients, layer.gradients()));
}

TEST(Bf16Layer, SameBitsForAnyNumberOfThreads) {
  const auto layer = multi_head();
  const Tensor<BFloat16> x = random_bf16({kBatch, kLength, kDim}, 1), dy = random_bf16({kBatch, kLength, kDim}, 2);
  test::expect_same_bits_for_threads([&](Context& context) {
    nn::Bf16Saved saved;
    const Tensor<BFloat16> y = layer->forward(x, {.context = &context}, &saved);
    return test::bits_of(y, layer->backward(dy, saved, context));
  });
}

TEST(Bf16Layer, WithoutProjectionsIsRefused) {
  const auto layer = nn::make_layer("average", {});
  const Tensor<BFloat16> x({1, 2, 3});
  test::expect_parts(test::text_of<UnsupportedError>([&] { layer->forward(x); }), {"[average]", "float"});
}

TEST(Bf16Layer, LinearRoundsItsWeights) {
  nn::Linear linear({.in_features = 33, .out_features = 20});
  test::randomise(linear, 1);
  for (const Index rows : {1, 7, 30}) {
    const Tensor<BFloat16> x = random_bf16({rows, 33}, 2), dy = random_bf16({rows, 20}, 3);
    std::vector<nn::Parameter> p = linear.parameters();
    const Tensor<BFloat16> weight = rounded(p[0].value, p[0].sizes);
    Tensor<BFloat16> y({rows, 20}), dx({rows, 33}), expected_y(y.sizes()), expected_dx(dx.sizes());
    Tensor<float> dweight({20, 33}), dbias({20});
    linear.zero_gradients();
    linear.forward(x.view<2>(), y.view<2>());
    linear.backward(x.view<2>(), dy.view<2>(), dx.view<2>());
    nn::linear_forward(x, weight, View<const float, 1>(p[1].value.data(), {20}), expected_y);
    nn::linear_backward(x, dy, weight, expected_dx, dweight, dbias);
    EXPECT_TRUE(same_bits(y.span(), expected_y.span()));
    EXPECT_TRUE(same_bits(dx.span(), expected_dx.span()));
    EXPECT_TRUE(same_bits(p[0].gradient, dweight.span()));
    EXPECT_TRUE(same_bits(p[1].gradient, dbias.span()));
  }
}

}  // namespace
}  // namespace qkv
