// Heads that are left out write zeros into the output projection. That a layer without one of its heads is right is
// held by the language model's tests (lm/trace_test.cc).
#include <gtest/gtest.h>

#include "layer_cases.h"

namespace qkv {
namespace {

using test::random_tensor;

TEST(Cut, GradientsWithoutAHeadAndZerosWithoutAll) {
  const std::vector<Index> cut{2}, all{0, 1, 2, 3};
  const Tensor<float> x = random_tensor({2, 5, 12}, 1), dy = random_tensor({2, 5, 12}, 2);
  const auto zeros = [](const Tensor<float>& y) { return std::ranges::count(y.span(), 0.0F) == y.count(); };
  Context context({.threads = 2});
  for (const test::LayerCase& one : test::grouped_cases()) {
    SCOPED_TRACE(one.name);
    nn::GroupedQueryAttention layer(one.config);
    test::randomise(layer, 7);
    layer.train(true);
    test::check_gradients(one, layer, x.clone(), dy, {.seed = 4, .scale = 0.3, .cut = cut, .context = &context});
    if (layer.has_output_bias() || layer.qk_norm() == nn::QkNorm::kVector) continue;
    EXPECT_TRUE(zeros(layer.forward(x, {.cut = all})) && !zeros(layer.forward(x, {.cut = cut})));
    EXPECT_TRUE(zeros(test::converted<float>(layer.forward(test::converted<BFloat16>(x), {.cut = all}))));
    KVCache cache({.num_kv_heads = layer.num_kv_heads(), .head_dim = layer.head_dim(), .sequences = 2, .capacity = 5});
    nn::StepMemory memory;
    Tensor<float> y({2, 5, 12});
    layer.step(x, y, cache, memory, {}, context, all);
    EXPECT_TRUE(zeros(y));
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
  test::expect_error<OptionError>([&] { layer.forward(x, {.cut = missing}); }, {"cut heads", "layer's 1", "head 1"});
  EXPECT_THROW(nn::AveragePooling(nn::LayerConfig{}).forward(x, {.cut = cut}), UnsupportedError);
  EXPECT_THROW(nn::AveragePooling(nn::LayerConfig{}).forward(x, {.scale = 1}), UnsupportedError);
}

}  // namespace
}  // namespace qkv
