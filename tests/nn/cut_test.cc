// Heads that are left out write zeros into the output projection: forward, backward, a step over a cache, bf16.
#include <gtest/gtest.h>

#include "layer_cases.h"

namespace qkv {
namespace {

using test::random_tensor;

/// The layer with the columns of one head of its output projection at 0.
nn::GroupedQueryAttention without_columns(const test::LayerCase& one, const nn::AttentionLayer& layer, Index head) {
  nn::GroupedQueryAttention made(one.config);
  made.copy_parameters(layer);
  made.train(layer.training());
  for (const nn::Parameter& parameter : made.parameters()) {
    if (parameter.name != "o_proj.weight") continue;
    for (Index row = 0; row < parameter.sizes[0]; ++row) {
      const auto columns = parameter.value.subspan(static_cast<std::size_t>(row * parameter.sizes[1]));
      std::ranges::fill(columns.subspan(static_cast<std::size_t>(head * layer.head_dim()))
                            .first(static_cast<std::size_t>(layer.head_dim())),
          0.0F);
    }
  }
  return made;
}

TEST(Cut, HeadsWriteZerosForwardBackwardAndInAStep) {
  const std::vector<Index> cut{2};
  Context context({.threads = 2});
  for (const test::LayerCase& one : test::grouped_cases()) {
    SCOPED_TRACE(one.name);
    nn::GroupedQueryAttention layer(one.config);
    test::randomise(layer, 7);
    const Tensor<float> x = random_tensor({2, 5, 12}, 1), dy = random_tensor({2, 5, 12}, 2);
    layer.train(true);
    test::check_gradients(one, layer, x.clone(), dy, {.seed = 4, .scale = 0.3, .cut = cut, .context = &context});

    const nn::GroupedQueryAttention other = without_columns(one, layer, 2);
    const nn::ForwardOptions options{.seed = 4, .cut = cut}, whole{.seed = 4};
    EXPECT_EQ(test::distance<float>(layer.forward(x, options).span(), other.forward(x, whole).span()), 0);
    EXPECT_GT(test::distance<float>(layer.forward(x, whole).span(), other.forward(x, whole).span()), 0.01);
    const Tensor<BFloat16> narrow = test::rounded(x);
    EXPECT_TRUE(
        test::same_bits(test::widened(layer.forward(narrow, options)), test::widened(other.forward(narrow, whole))));

    if (layer.qk_norm() == nn::QkNorm::kVector) continue;
    const auto stepped = [&](const nn::AttentionLayer& from, std::span<const Index> heads) {
      KVCache cache({.num_kv_heads = from.num_kv_heads(), .head_dim = from.head_dim(), .sequences = 2, .capacity = 5});
      nn::StepMemory memory;
      Tensor<float> y({2, 5, 12});
      from.step(x, y, cache, memory, {}, context, heads);
      return y;
    };
    EXPECT_TRUE(std::ranges::equal(stepped(layer, cut).span(), stepped(other, {}).span()));
  }
}

TEST(Cut, ALayerWithoutOutputProjectionOrHeads) {
  const std::vector<Index> cut{0}, missing{1};
  const Tensor<float> x = random_tensor({2, 5, 8}, 1);
  nn::SelfAttentionV1 layer({.embed_dim = 8});
  nn::Saved saved;
  const Tensor<float> y = layer.forward(x, {.cut = cut}, &saved), dx = layer.backward(x, saved);
  for (const Tensor<float>* zeros : {&y, &dx})
    for (const float value : zeros->span()) EXPECT_EQ(value, 0);
  for (const nn::Parameter& parameter : layer.parameters())
    for (const float gradient : parameter.gradient) EXPECT_EQ(gradient, 0) << parameter.name;
  test::expect_error<OptionError>([&] { layer.forward(x, {.cut = missing}); }, {"cut heads", "layer's 1", "head 1"});
  EXPECT_THROW(nn::AveragePooling(nn::LayerConfig{}).forward(x, {.cut = cut}), UnsupportedError);
  EXPECT_THROW(nn::AveragePooling(nn::LayerConfig{}).forward(x, {.scale = 1}), UnsupportedError);
}

}  // namespace
}  // namespace qkv
