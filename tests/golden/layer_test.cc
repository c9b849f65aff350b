// Every layer of the ladder against PyTorch: outputs, weights and every gradient, in evaluation and with qkv's dropout.
#include "qkv/nn/layer.h"

#include <gtest/gtest.h>

#include "golden/golden_layer.h"

namespace qkv {
namespace {

class LayerGolden : public testing::TestWithParam<std::string> {};

TEST_P(LayerGolden, OutputsAndGradients) {
  const golden::File file(GetParam());
  const Tensor<float> x = file.f32("x");
  nn::LayerConfig config;
  config.embed_dim = x.size(2);
  config.length = x.size(1);
  config.num_heads = static_cast<Index>(file.number("heads"));
  config.causal = file.number("causal") != 0;
  config.empty_row = file.fact("fill") == "-inf" ? EmptyRow::kNaN : EmptyRow::kMean;
  config.dropout = static_cast<float>(file.number("dropout"));
  config.residual_dropout = static_cast<float>(file.number("residual"));
  const std::unique_ptr<nn::Layer> layer = nn::load_layer(file.fact("layer"), file.parameters(), std::move(config));
  layer->train(file.fact("mode") == "train");

  golden::expect_golden_layer(file, *layer, {.seed = file.seed()});
}

INSTANTIATE_TEST_SUITE_P(Files, LayerGolden, testing::ValuesIn(golden::File::of_kind("layer")),
    [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace qkv
