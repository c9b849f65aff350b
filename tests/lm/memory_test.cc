// A training step after the first of its shape allocates nothing: no tensor, no list, no text.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "support/allocations.h"

namespace qkv {
namespace {

void check_training_steps(lm::AttentionLMConfig config, int threads) {
  const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(lm::default_text());
  const lm::BatchSource source = lm::BatchSource::windows(tokenizer.encode(lm::default_text()), {}, 0);
  config.vocab_size = tokenizer.vocab_size();
  Context context({.threads = threads});
  context.impl().region_flops = 0;  // parallel regions, however small the work
  lm::AttentionLM model(config);
  lm::Trainer trainer(model, {.steps = 10});
  expect_no_allocation_after_the_first(context, [&] { trainer.step(source, context); });
  if (threads > 1 || config.num_layers > 1) return;
  expect_only_bad_alloc([&] {
    Context other({.threads = 1});
    lm::AttentionLM untrained(config);
    lm::Trainer(untrained, {.steps = 10}).step(source, other);
    lm::checkpoint_from_state(lm::checkpoint_to_state(untrained, tokenizer, "text", 1, nullptr));
  });
}

TEST(Memory, ATrainingStepAllocatesNothingAfterTheFirst) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    check_training_steps({}, threads);
    check_training_steps({.num_heads = 2, .num_layers = 2, .dropout = 0.1}, threads);
    check_training_steps(
        {.num_heads = 4, .num_kv_heads = 2, .num_layers = 2, .positions = lm::PositionKind::kRotary}, threads);
    check_training_steps({.num_heads = 2, .num_layers = 2, .blocks = true, .dropout = 0.1}, threads);
  }
}

}  // namespace
}  // namespace qkv
