// The toy model against PyTorch: the first hundred losses from the same start, and every gradient of the model with
// blocks.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "golden/golden.h"
#include "lm/lm_test_support.h"
#include "qkv/io/npy.h"

namespace qkv {
namespace {

using lm::AttentionLM;

TEST(GoldenLM, FirstHundredLossesArePyTorchs) {
  const Tensor<double> expected = to_f64(io::load_npy(golden::path("lm_losses.npy")));
  Tensor<Index> batches = to_i64(io::load_npy(golden::path("lm_batches.npy")));  // [100, 32, 17]
  ASSERT_EQ(expected.count(), 100);
  AttentionLM model(test::default_config());
  model.load_state_dict(io::load_safetensors(golden::path("lm_init.safetensors")));
  lm::Trainer trainer(model, {.steps = 100});
  const std::vector<double> losses = trainer.run(lm::BatchSource::from_arrays(std::move(batches))).losses;
  ASSERT_EQ(losses.size(), 100U);
  double worst = 0;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step], expected.data()[step], 1e-5) << "step " << step;
    worst = std::max(worst, std::abs(losses[step] - expected.data()[step]));
  }
  std::printf("largest difference %.2e\n", worst);
}

TEST(GoldenLM, TheDefaultAlphabetIsTheFiles) {
  EXPECT_EQ(io::load_safetensors(golden::path("lm_init.safetensors")).metadata.at("alphabet"),
      test::default_tokenizer().decode(std::vector<Index>{0, 1, 2, 3, 4, 5, 6}));
}

/// Logits, loss and gradients of a file with nanoGPT's names; tied: the embedding's gradient there includes the head's.
void check_blocks(const std::string& name) {
  const golden::File file(name);
  const bool tied = file.number("tied") != 0;
  const StateDict parameters = file.parameters();
  const bool rotary = file.tensors().metadata.contains("rotary") && file.number("rotary") != 0;
  const std::vector<Index> wte = parameters.at("transformer.wte.weight").sizes;
  lm::AttentionLMConfig config{
      .vocab_size = wte[0], .context = static_cast<Index>(file.number("context")), .embed_dim = wte[1]};
  config.num_heads = static_cast<Index>(file.number("heads"));
  config.num_layers = static_cast<Index>(file.number("layers"));
  config.blocks = true;
  if (rotary) {
    config.num_kv_heads = static_cast<Index>(file.number("kv_heads"));
    config.positions = lm::PositionKind::kRotary;
  }
  AttentionLM model(config);
  model.load_state_dict(parameters);

  const Tensor<Index> ids = to_i64(file.tensors().at("ids"));  // [B, T + 1]
  const View<const Index, 2> all = ids;
  AttentionLM::Activations activations;
  model.forward(all.sliced(1, 0, ids.size(1) - 1), activations);
  const View<const float, 3> logits = activations.logits();
  EXPECT_LE(file.ratio("logits", std::span(logits.data(), static_cast<std::size_t>(logits.count()))), 1);
  const double loss = model.loss(all.sliced(1, 1, ids.size(1)), activations);
  EXPECT_LE(file.ratio("loss", std::span(&loss, 1), file.bound("loss")), 1);

  model.backward(activations);
  const std::vector<nn::Parameter> all_parameters = model.parameters();
  const nn::Parameter& head = all_parameters.back();
  ASSERT_EQ(head.name, "lm_head.weight");
  EXPECT_EQ(all_parameters.size(), file.names("grad.").size() + (tied ? 1 : 0));
  for (const nn::Parameter& parameter : all_parameters) {
    if (tied && parameter.name == head.name) continue;
    std::vector<float> gradient(parameter.gradient.begin(), parameter.gradient.end());
    if (tied && parameter.name == "transformer.wte.weight") {
      std::ranges::transform(gradient, head.gradient, gradient.begin(), std::plus<>());
    }
    EXPECT_LE(file.ratio("grad." + parameter.name, std::span<const float>(gradient)), 1) << parameter.name;
  }
}

TEST(GoldenLM, Blocks) { check_blocks("lm_blocks"); }
TEST(GoldenLM, BlocksWithGroupedHeadsAndRotaryPositions) { check_blocks("lm_blocks_rotary"); }
TEST(GoldenLM, BlocksWithATiedHead) { check_blocks("lm_blocks_tied"); }

}  // namespace
}  // namespace qkv
