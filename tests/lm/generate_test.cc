// Generation: the cache gives what a full forward over the same window gives, past several contexts; and how ids are
// drawn.
#include "qkv/lm/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lm/lm_test_support.h"

namespace qkv {
namespace {

using lm::AttentionLM;

/// Feeds `count` ids one by one; after each, the logits must be those of a full forward over the window.
void check_decoder(const lm::AttentionLMConfig& config, Index prompt_length, Index count, const lm::HeadSet& cut = {}) {
  SCOPED_TRACE(std::to_string(config.num_layers) + " layers of " + std::to_string(config.embed_dim));
  AttentionLM model(config, 6);
  lm::Batch batch;
  lm::BatchSource::previous(config.vocab_size, {1, prompt_length + count}, 3).fill(0, batch);
  const std::span<const Index> ids = std::as_const(batch.inputs).span();
  const auto last_index = static_cast<std::size_t>(prompt_length);

  Context& context = Context::default_context();
  lm::Decoder decoder(model, context, cut);
  decoder.prefill(ids.first(last_index));
  for (std::size_t read = last_index;; ++read) {
    const std::span<const Index> window = decoder.window();
    ASSERT_TRUE(!window.empty() && std::ssize(window) <= config.context);
    ASSERT_TRUE(std::ranges::equal(window, ids.first(read).last(window.size()))) << "after " << read << " ids";
    const Tensor<float> full = model.logits(View<const Index, 2>(window.data(), {1, std::ssize(window)}), context, cut);
    const std::span<const float> expected = full.span().last(static_cast<std::size_t>(config.vocab_size));
    for (std::size_t v = 0; v < expected.size(); ++v) {
      ASSERT_NEAR(decoder.logits()[v], expected[v], 1e-5F * (1 + std::abs(expected[v])))
          << "after " << read << " ids, logit " << v;
    }
    if (read == ids.size()) break;
    decoder.append(ids[read]);
  }
}

TEST(Generate, CacheIsTheFullForwardPastSeveralContexts) {
  lm::AttentionLMConfig rotary = test::default_config();
  rotary.positions = lm::PositionKind::kRotary;
  check_decoder(test::default_config(), 5, 60);
  check_decoder(test::default_config(), 40, 20);  // the prompt is longer than the context
  check_decoder(test::blocks_config(), 3, 40);
  check_decoder({.vocab_size = 5, .context = 7, .embed_dim = 12, .num_heads = 3, .num_layers = 3}, 7, 30);
  check_decoder(
      {.vocab_size = 7, .context = 9, .embed_dim = 24, .num_heads = 4, .num_kv_heads = 1, .num_layers = 2}, 4, 30);
  check_decoder(rotary, 5, 60);
  check_decoder(test::grouped_rotary_config(false), 3, 30);
  check_decoder(test::grouped_rotary_config(true), 3, 30);
  check_decoder({.vocab_size = 5, .context = 1, .embed_dim = 4}, 1, 6);
  check_decoder(test::default_config(), 5, 30, {{0, 0}});
  check_decoder(test::grouped_rotary_config(false), 3, 20, {{0, 3}, {1, 0}});
  check_decoder(test::grouped_rotary_config(true), 3, 20, {{1, 1}, {1, 2}});
}

TEST(Generate, AFullContextKeepsItsLastHalf) {
  AttentionLM model(test::default_config());
  lm::Decoder decoder(model);
  decoder.prefill(std::vector<Index>(16, 1));
  decoder.append(2);
  std::vector<Index> expected(8, 1);
  expected.push_back(2);
  EXPECT_TRUE(std::ranges::equal(decoder.window(), expected));
}

TEST(Generate, AWrongIdForgetsNothing) {
  AttentionLM model(test::default_config());
  lm::Decoder decoder(model);
  const std::vector<Index> prompt(16, 1), wrong{1, 7};
  std::vector<Index> long_ago(30, 1);
  long_ago.front() = 7;  // before the context
  decoder.prefill(prompt);
  test::expect_error<OptionError>([&] { decoder.append(7); }, {"[0, 7)", "got 7"});
  EXPECT_TRUE(std::ranges::equal(decoder.window(), prompt));
  test::expect_error<OptionError>([&] { decoder.prefill(wrong); }, {"[0, 7)", "got 7"});
  test::expect_error<OptionError>([&] { decoder.prefill(long_ago); }, {"[0, 7)", "got 7"});
  EXPECT_TRUE(std::ranges::equal(decoder.window(), prompt));
}

TEST(Generate, GreedyTakesTheLargestAndTopOneIsGreedy) {
  AttentionLM model(test::default_config(), 2);
  const std::vector<Index> prompt{1, 2, 3};
  const std::vector<Index> greedy = lm::generate(model, prompt, {.tokens = 40, .greedy = true});
  EXPECT_EQ(greedy, lm::generate(model, prompt, {.tokens = 40, .top_k = 1, .seed = 9}));
  EXPECT_EQ(greedy, lm::generate(model, prompt, {.tokens = 40, .temperature = 1e-4}));
  lm::Decoder decoder(model);
  decoder.prefill(prompt);
  EXPECT_EQ(greedy[0], std::ranges::max_element(decoder.logits()) - decoder.logits().begin());
}

TEST(Generate, SeedDecides) {
  AttentionLM model(test::default_config(), 2);
  const std::vector<Index> prompt{1};
  const auto text = [&](std::uint64_t seed) { return lm::generate(model, prompt, {.tokens = 50, .seed = seed}); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  EXPECT_NE(text(1), lm::generate(model, prompt, {.tokens = 50, .seed = 1, .cut = {{0, 0}}}));
}

TEST(Generate, FrequenciesAreTheSoftmax) {
  AttentionLM model(test::default_config(), 2);
  const std::vector<Index> prompt{1, 4};
  lm::Decoder decoder(model);
  decoder.prefill(prompt);
  const double temperature = 1.5;
  std::vector<double> expected;
  double sum = 0;
  for (const float x : decoder.logits()) {
    expected.push_back(std::exp(static_cast<double>(x) / temperature));
    sum += expected.back();
  }
  constexpr int kDraws = 4000;
  std::vector<double> found(7);
  for (int seed = 0; seed < kDraws; ++seed) {
    const lm::GenerateOptions options{
        .tokens = 1, .temperature = temperature, .seed = static_cast<std::uint64_t>(seed)};
    found[static_cast<std::size_t>(lm::generate(model, prompt, options)[0])] += 1.0 / kDraws;
  }
  for (std::size_t v = 0; v < 7; ++v) {
    const double p = expected[v] / sum;
    EXPECT_NEAR(found[v], p, 5 * std::sqrt(p * (1 - p) / kDraws)) << v;
  }
}

TEST(Generate, TopKAndAllowedIdsBound) {
  AttentionLM model(test::default_config(), 2);
  const std::vector<Index> prompt{1, 4};
  lm::Decoder decoder(model);
  decoder.prefill(prompt);
  std::vector<float> sorted(decoder.logits().begin(), decoder.logits().end());
  std::ranges::sort(sorted, std::greater<>());
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Index id = lm::generate(model, prompt, {.tokens = 1, .temperature = 5, .top_k = 3, .seed = seed})[0];
    EXPECT_GE(decoder.logits()[static_cast<std::size_t>(id)], sorted[2]);
    EXPECT_LT(lm::generate(model, prompt, {.tokens = 1, .temperature = 5, .allowed_ids = 2, .seed = seed})[0], 2);
  }
}

TEST(Generate, ProbabilitiesAreThoseOfEachId) {
  const std::vector<float> logits{0.5F, -3, 90, 89, 90.25F};
  const std::vector<float> shares = lm::probabilities(logits);
  ASSERT_EQ(shares.size(), logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id)
    EXPECT_FLOAT_EQ(shares[id], static_cast<float>(std::exp(lm::log_probability(logits, static_cast<Index>(id)))));
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-7);
  EXPECT_TRUE(lm::probabilities({}).empty());
  for (const Index id : {Index{-1}, Index{5}})
    test::expect_error<OptionError>(
        [&] { lm::log_probability(logits, id); }, {"below the 5 logits", std::to_string(id)});
}

TEST(Generate, Errors) {
  AttentionLM model(test::default_config());
  const std::vector<Index> prompt{1}, unknown{7}, none;
  test::expect_error<OptionError>([&] { lm::generate(model, none); }, {"at least one character"});
  test::expect_error<OptionError>([&] { lm::generate(model, unknown); }, {"[0, 7)", "got 7"});
  test::expect_error<OptionError>([&] { lm::generate(model, prompt, {.temperature = 0}); }, {"temperature"});
  test::expect_error<OptionError>([&] { lm::generate(model, prompt, {.tokens = -1}); }, {"tokens"});
  test::expect_error<OptionError>([&] { lm::generate(model, prompt, {.allowed_ids = 8}); }, {"allowed_ids", "[1, 7]"});
  test::expect_error<OptionError>([&] { lm::generate(model, prompt, {.cut = {{0, 1}}}); }, {"1 heads", "head 1"});
  AttentionLM diverged(test::default_config());
  diverged.parameters().back().value[2] = std::numeric_limits<float>::quiet_NaN();  // of head.bias
  test::expect_error<OptionError>([&] { lm::generate(diverged, prompt, {.greedy = true}); }, {"finite", "got nan"});
  model.set_causal(false);
  test::expect_error<OptionError>([&] { lm::generate(model, prompt); }, {"causal"});
}

}  // namespace
}  // namespace qkv
