// A batch on one of several ranks: the same logits, and gradients that add up to the whole's.
#include <cmath>

#include "lm/lm_test_support.h"

namespace qkv {
namespace {

using lm::AttentionLM;

lm::Batch batch_of(const lm::BatchShape& shape) {
  lm::Batch batch;
  lm::BatchSource::masked(test::default_ids(), 7, shape, 3).fill(0, batch);
  return batch;
}

// Five of seven sequences and two of them, with dropout: rows of logits are the whole's, bit for bit; gradients add up
// to within the sum of as many terms as there are tokens.
TEST(BatchShare, SequencesOfABatch) {
  for (const bool blocks : {false, true}) {
    lm::AttentionLMConfig config = blocks ? test::blocks_config() : test::default_config();
    config.vocab_size = 8, config.causal = false, config.dropout = 0.2;
    const lm::HeadSet cut = blocks ? lm::HeadSet{{1, 1}} : lm::HeadSet{};
    Context& context = Context::default_context();
    AttentionLM model(config, 1);
    model.train(true);
    const lm::Batch batch = batch_of({7, config.context});
    const Index all = std::ranges::count_if(batch.targets.span(), [](Index target) { return target != lm::kNoTarget; });
    AttentionLM::Activations whole;
    model.forward(batch.inputs, whole, 11, context, cut);
    const double loss = model.loss(batch.targets, whole);
    model.backward(whole);
    const std::vector<float> expected = test::gradients_of(model);

    double sum = 0;
    std::vector<double> gradients(expected.size()), magnitudes(expected.size());
    for (const auto& [first, count] : {std::pair<Index, Index>{0, 5}, {5, 2}}) {
      AttentionLM::Activations own({.batch = 7, .length = config.context, .first_sequence = first, .sequences = count});
      model.forward(batch.inputs.view<2>().sliced(0, first, first + count), own, 11, context, cut);
      for (Index b = 0; b < count; ++b) {
        const float *mine = &own.logits()(b, 0, 0), *theirs = &whole.logits()(first + b, 0, 0);
        EXPECT_EQ(std::memcmp(mine, theirs, static_cast<std::size_t>(config.context * 8) * sizeof(float)), 0) << blocks;
      }
      sum += model.loss(batch.targets.view<2>().sliced(0, first, first + count), own, context, all);
      model.backward(own);
      const std::vector<float> share = test::gradients_of(model);
      for (std::size_t n = 0; n < share.size(); ++n) {
        gradients[n] += static_cast<double>(share[n]);
        magnitudes[n] = std::max(magnitudes[n], std::abs(static_cast<double>(share[n])));
      }
    }
    const double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
    EXPECT_NEAR(sum, loss, 4 * static_cast<double>(all) * 0x1p-53 * (loss + 1)) << "a sum in f64 in another order";
    double largest = 0;
    for (const double magnitude : magnitudes) largest = std::max(largest, magnitude);
    for (std::size_t n = 0; n < expected.size(); ++n)
      ASSERT_NEAR(
          gradients[n], static_cast<double>(expected[n]), 7 * static_cast<double>(config.context) * eps * largest)
          << n;
  }
}

TEST(BatchShare, APartWithoutTargetsAddsNothing) {
  AttentionLM model(test::default_config(), 1);
  const Tensor<Index> ids({2, 16});
  Tensor<Index> targets({1, 16});
  std::ranges::fill(targets.span(), lm::kNoTarget);
  AttentionLM::Activations own({.batch = 2, .length = 16, .first_sequence = 1, .sequences = 1});
  model.forward(ids.view<2>().sliced(0, 1, 2), own);
  EXPECT_EQ(model.loss(targets, own, Context::default_context(), 5), 0);
  model.backward(own);
  for (const float gradient : test::gradients_of(model)) EXPECT_EQ(gradient, 0);
  EXPECT_THROW(model.loss(targets, own), OptionError);
  EXPECT_THROW(model.forward(ids, own), ShapeError);
  EXPECT_THROW(AttentionLM::Activations({.batch = 2, .length = 16, .first_sequence = 1, .sequences = 2}), OptionError);
}

// One sum a layer forward, one backward. A single part is the whole.
TEST(BatchShare, ShardsSumOnceALayerAndWay) {
  for (const bool blocks : {false, true}) {
    AttentionLM model(test::grouped_rotary_config(blocks), 2), trained(test::grouped_rotary_config(blocks), 2);
    int sums = 0;
    AttentionLM shard = model.shard(0, 1, [&](std::span<float>) { ++sums; });
    const lm::BatchSource source = lm::BatchSource::windows(test::default_ids(), {4, 9}, 1);
    const lm::TrainOptions options{.steps = 3, .clip_norm = 1};
    const std::vector<double> losses = lm::Trainer(shard, options).run(source).losses;
    EXPECT_EQ(sums, 3 * 2 * 2);
    EXPECT_EQ(losses, lm::Trainer(trained, options).run(source).losses);
    model.merge_shard(shard, 0, 1);
    EXPECT_TRUE(test::same_bits(test::values_of(model), test::values_of(trained)));
    EXPECT_THROW(model.shard(0, 3, {}), OptionError);
    AttentionLM other(test::grouped_rotary_config(blocks), 9);
    const std::vector<float> before = test::values_of(other);
    EXPECT_THROW(other.merge_shard(model.shard(0, 2, {}), 0, 1), ShapeError);
    lm::AttentionLMConfig longer = test::grouped_rotary_config(blocks);
    longer.context += 1;
    EXPECT_THROW(other.merge_shard(AttentionLM(longer).shard(0, 1, {}), 0, 1), ShapeError);
    EXPECT_TRUE(test::same_bits(test::values_of(other), before)) << "a refused shard changes nothing";
  }
}

// What two parts of the heads write adds up to the whole's, also where one of them leaves a head out.
TEST(BatchShare, AHeadIsCutInTheShardThatHasIt) {
  for (const bool blocks : {false, true}) {
    lm::AttentionLMConfig config = test::grouped_rotary_config(blocks);
    config.num_layers = 1, config.vocab_size = 8;
    AttentionLM model(config, 2);
    const lm::Batch batch = batch_of({3, 9});
    const lm::HeadSet cut{{0, 3}};
    std::vector<float> second;  // what the second part writes
    const AttentionLM parts[] = {model.shard(0, 2,
                                     [&](std::span<float> x) {
                                       for (std::size_t n = 0; n < x.size(); ++n) x[n] += second[n];
                                     }),
        model.shard(1, 2, [&](std::span<float> x) { second.assign(x.begin(), x.end()); })};
    (void)parts[1].logits(batch.inputs, Context::default_context(), cut);
    const Tensor<float> sum = parts[0].logits(batch.inputs, Context::default_context(), cut),
                        whole = model.logits(batch.inputs, Context::default_context(), cut),
                        all = model.logits(batch.inputs);
    EXPECT_LT(test::distance<float>(sum.span(), whole.span()), 2e-6);
    EXPECT_GT(test::distance<float>(sum.span(), all.span()), 1e-3);
    test::expect_error<UnsupportedError>([&] { (void)parts[0].trace(batch.inputs); }, {"shard"});
    test::expect_error<UnsupportedError>([&] { (void)parts[1].clone(); }, {"AttentionLM::clone", "shard"});
  }
}

TEST(BatchShare, APartLiesInItsSequencesAndTheseInTheContext) {
  AttentionLM model(test::default_config(), 1);
  nn::SequencePart part;
  part.forward = [](const auto&...) {};
  for (Index i = 0; i < 16; ++i) part.positions.push_back(i);
  const Tensor<Index> ids({4, 16});
  AttentionLM::Activations longer({.batch = 4, .length = 32, .sequences = 4, .part = &part});
  test::expect_error<ShapeError>([&] { model.forward(ids, longer); }, {"the context 16", "got 32"});
  AttentionLM::Activations alone({.part = &part});
  const View<const Index, 2> few = ids.view<2>().sliced(1, 0, 15);
  test::expect_error<ShapeError>([&] { model.forward(few, alone); }, {"this rank's share"});

  part.positions.clear();
  test::expect_error<OptionError>([&] { AttentionLM::Activations({.part = &part}); }, {"at least one token"});
  test::expect_error<OptionError>(
      [] { AttentionLM::Activations({.batch = 2, .length = 4, .sequences = 0}); }, {"at least one sequence"});
  EXPECT_THROW(
      AttentionLM::Activations({.batch = 2, .first_sequence = std::numeric_limits<Index>::max(), .sequences = 1}),
      OptionError);
  part.positions = {0, 16};
  lm::Trainer trainer(model, {.steps = 1, .share = {.batch = 2, .length = 16, .sequences = 1, .part = &part}});
  const lm::BatchSource source = lm::BatchSource::windows(test::default_ids(), {2, 16}, 1);
  test::expect_error<OptionError>([&] { trainer.step(source); }, {"Trainer", "[0, 16)", "got 16"});
}

}  // namespace
}  // namespace qkv
