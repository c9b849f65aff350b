// A training step after the first of its shape allocates nothing: no tensor, no list, no text.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/task.h"
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

/// A step of training, a file of it, and all that reads a model.
std::vector<double> of_model(lm::AttentionLMConfig config, std::string_view task) {
  const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text("abc abc");
  const lm::Task& named = lm::task_named(task, "a test");
  config.vocab_size = named.vocab_size(tokenizer.vocab_size()), config.context = 4, config.embed_dim = 8,
  config.num_heads = 2;
  TwoThreads two;
  const std::vector<Index> ids = tokenizer.encode("abc cab bca");
  const lm::BatchSource source = named.batches(ids, tokenizer.vocab_size(), {.batch = 2, .context = 4}, 1);
  lm::AttentionLM model(config);
  lm::Trainer trainer(model, {.steps = 2, .clip_norm = 1});
  const std::vector<double> losses = trainer.run(source, two).losses;
  const StateDict state = lm::checkpoint_to_state(model, tokenizer, std::string(task), 2, &trainer.adam().state());
  const lm::Checkpoint read = lm::checkpoint_from_state(state);
  const Tensor<Index> some = [&] {
    Tensor<Index> tensor({1, 4});
    std::copy_n(ids.begin(), 4, tensor.data());
    return tensor;
  }();
  const lm::Trace trace = read.model.trace(some, {.cut = {{0, 1}}, .targets = some}, two);
  const lm::PredictionScore score = lm::score_predictions(read.model, source, 1, two);
  const lm::AttentionReport report = lm::attention_report(read.model, std::span(ids).first(4), two);
  return numbers_of(losses, read.tokenizer.describe(), trace.logits.span(), trace.layers[0].gradients.span(),
      report.weights.span(), std::vector{score.loss}, read.model.clone().logits(some, two).span());
}

TEST(Memory, OutInAModelIsBadAlloc) {
  expect_only_bad_alloc_of({
      {"plain", [] { return of_model({}, "text"); }},
      {"blocks", [] { return of_model({.blocks = true, .dropout = 0.1}, "masked"); }},
      {"rotary", [] { return of_model({.num_kv_heads = 1, .positions = lm::PositionKind::kRotary}, "previous"); }},
      {"same", [] { return of_model({}, "same"); }},
      {"induction", [] { return of_model({}, "induction"); }},
      {"generation",
          [] {
            TwoThreads two;
            const lm::AttentionLM model({.vocab_size = 5, .context = 4, .embed_dim = 8, .num_heads = 2});
            const std::vector<Index> prompt{1, 2, 3};
            lm::Decoder decoder(model, two);
            decoder.prefill(prompt);
            for (const Index id : {1, 4, 2}) decoder.append(id);  // past the context
            return numbers_of(lm::generate(model, prompt, {.tokens = 4, .top_k = 3, .cut = {{0, 1}}}, two),
                decoder.logits(), lm::probabilities(decoder.logits()));
          }},
      {"halves",
          [] {
            const lm::AttentionLM model({.vocab_size = 5, .context = 4, .embed_dim = 8, .num_heads = 2});
            lm::AttentionLM whole = model.clone();
            lm::AttentionLM half = model.shard(1, 2, [](std::span<float>) {});
            whole.merge_shard(half, 1, 2);
            return numbers_of(half.parameters().front().value, whole.state_dict().entries().front().tensor.bytes);
          }},
      {"a stranger's file",
          [] {
            try {
              lm::checkpoint_from_state({});
            } catch (const Error& error) {
              return numbers_of(std::string_view(error.what()));
            }
            return std::vector<double>{};
          }},
  });
}

}  // namespace
}  // namespace qkv
