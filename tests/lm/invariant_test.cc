// Bits::kInvariant: a Decoder that reads characters one by one, in a prompt of any length, gives the logits of the
// training forward to the last bit, and so the log-probabilities.
#include <gtest/gtest.h>

#include <numeric>

#include "lm_test_support.h"
#include "qkv/lm/generate.h"
#include "support/isas.h"

namespace qkv::lm {
namespace {

std::vector<AttentionLMConfig> configs() {
  std::vector<AttentionLMConfig> all;
  for (const bool blocks : {false, true}) {
    for (const PositionKind positions : {PositionKind::kLearned, PositionKind::kRotary}) {
      all.push_back({.vocab_size = 11,
          .context = 90,
          .embed_dim = 24,
          .num_heads = 4,
          .num_kv_heads = 2,
          .num_layers = 2,
          .blocks = blocks,
          .positions = positions});
    }
  }
  all.push_back({.vocab_size = 7, .context = 40, .embed_dim = 800, .num_heads = 2});  // more than one block of depth
  return all;
}

TEST(InvariantLM, GeneratedLogProbabilitiesAreThoseOfTheTrainingForward) {
  for (const AttentionLMConfig& config : configs()) {
    SCOPED_TRACE(std::to_string(config.embed_dim) + (config.blocks ? " blocks" : " plain") +
                 (config.positions == PositionKind::kRotary ? " rotary" : ""));
    const AttentionLM model(config, 3);
    for (const Isa isa : test::tested_isas()) {
      SCOPED_TRACE(std::string(isa_name(isa)));
      Context context({.threads = 2, .isa = isa, .bits = Bits::kInvariant});
      std::vector<Index> ids(9);
      std::iota(ids.begin(), ids.end(), Index{0});
      for (Index& id : ids) id %= config.vocab_size;
      const auto prompt = static_cast<Index>(ids.size());
      std::vector<double> log_probs;
      GenerateOptions options{.tokens = config.context - prompt, .seed = 5};
      options.on_token = [&](Index, double log_prob) { log_probs.push_back(log_prob); };
      for (const Index id : generate(model, ids, options, context)) ids.push_back(id);
      ASSERT_EQ(static_cast<Index>(ids.size()), config.context);

      for (const Index copies : {Index{1}, Index{3}}) {  // a batch of the same text
        std::vector<Index> batch;
        for (Index n = 0; n < copies; ++n) batch.insert(batch.end(), ids.begin(), ids.end());
        const Tensor<float> logits =
            model.logits(View<const Index, 2>(batch.data(), {copies, config.context}), context);
        for (std::size_t n = 0; n < log_probs.size(); ++n) {
          const auto position = static_cast<std::size_t>(prompt) + n - 1;
          for (Index b = 0; b < copies; ++b) {
            const auto row = static_cast<std::size_t>(b * config.context) + position;
            const auto vocab = static_cast<std::size_t>(config.vocab_size);
            EXPECT_EQ(log_probability(logits.span().subspan(row * vocab, vocab), ids[position + 1]), log_probs[n])
                << "position " << position << " of copy " << b;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv::lm
