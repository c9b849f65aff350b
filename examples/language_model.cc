// The toy language model: 300 steps on the default text, what it attends to, and what it writes. A few hundred
// milliseconds.
#include "example.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"

int main() {
  const std::string text = qkv::lm::default_text();
  const auto tokenizer = qkv::lm::CharTokenizer::from_text(text);
  qkv::lm::AttentionLM model({.vocab_size = tokenizer.vocab_size(), .context = 16, .embed_dim = 32});
  std::printf(
      "%lld parameters, alphabet %s\n", static_cast<long long>(model.parameter_count()), tokenizer.describe().c_str());

  const auto batches = qkv::lm::BatchSource::windows(tokenizer.encode(text), {.batch = 32, .context = 16}, 1);
  qkv::lm::TrainOptions options{.steps = 300};
  options.on_step = [](const qkv::lm::StepReport& at) {
    if (at.step % 50 == 0) std::printf("step %lld  loss %.3f\n", static_cast<long long>(at.step), at.loss);
  };
  const qkv::lm::TrainResult result = qkv::lm::Trainer(model, options).run(batches);
  std::printf("step 299  loss %.3f, %.2f s\n", result.losses.back(), result.seconds);

  const auto report = qkv::lm::attention_report(model, tokenizer.encode("abababab"));
  const qkv::lm::HeadReport& head = report.heads[0];
  print_table("attention on abababab:", {report.weights.data(), {8, 8}});
  std::printf("self %.2f  previous %.2f  first %.2f  same character %.2f\n", head.self.mean, head.previous.mean,
      head.first.mean, head.same.mean);
  const auto ids = qkv::lm::generate(model, tokenizer.encode("abab"), {.tokens = 40, .greedy = true});
  std::printf("abab -> %s\n", tokenizer.decode(ids).c_str());
  return verdict(
      result.losses.back() < result.losses.front() / 3 && ids.size() == 40, "the loss fell to less than a third");
}
