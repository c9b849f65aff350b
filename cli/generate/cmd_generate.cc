// `qkv generate`: continues a prompt with a trained model. Not: training.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/escape.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/trainer.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct GenerateCommandOptions {
  std::string model, prompt;
  Index tokens = 64, top_k = 0;
  double temperature = 1;
  bool greedy = false, json = false;
  std::string cache = "f32";
  std::uint64_t seed = 0;
  ComputeOptions compute;
};

CacheStorage storage_of(const std::string& name) {
  if (name == "bf16") return CacheStorage::kBF16;
  if (name == "f16") return CacheStorage::kF16;
  return name == "int8" ? CacheStorage::kInt8 : CacheStorage::kF32;
}

/// When characters came: the first one ends the prompt, the others give the pace.
class Pace {
 public:
  void note() {
    last_ = Clock::now();
    if (count_++ == 0) first_ = last_;
  }
  double prompt_seconds() const { return count_ == 0 ? 0 : seconds(start_, first_); }
  /// 0 where fewer than two came.
  double tokens_per_second() const { return count_ < 2 ? 0 : static_cast<double>(count_ - 1) / seconds(first_, last_); }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::max(1e-9, std::chrono::duration<double>(to - from).count());
  }

  Clock::time_point start_ = Clock::now(), first_ = start_, last_ = start_;
  Index count_ = 0;
};

/// A text as it is for a file or a pipe; on a terminal without control characters.
std::string shown(const std::string& text) {
  if (!terminal().interactive) return text;
  std::string safe;
  for (const std::string& character : view::characters(text)) {
    safe += character == "\n" || character == "\t" || character == " " ? character : one_line(character);
  }
  return safe;
}

int run_generate(const GenerateCommandOptions& options) {
  const StateDict state = load_safetensors("--model", options.model);
  const lm::Checkpoint checkpoint =
      about_file("--model", options.model, [&] { return lm::checkpoint_from_state(state); });
  if (options.prompt.empty()) throw UsageError("--prompt must have at least one character");
  const std::vector<Index> prompt = about("--prompt", [&] { return checkpoint.tokenizer.encode(options.prompt); });

  Context context(options.compute.context());
  Pace pace;
  std::vector<double> log_probs;
  const lm::GenerateOptions generate{.tokens = options.tokens,
      .greedy = options.greedy,
      .temperature = options.temperature,
      .top_k = options.top_k,
      .allowed_ids = checkpoint.tokenizer.vocab_size(),
      .seed = options.seed,
      .cache = storage_of(options.cache),
      .on_token = [&](Index, double log_prob) {
        pace.note();
        log_probs.push_back(log_prob);
      }};
  const std::vector<Index> ids = lm::generate(checkpoint.model, prompt, generate, context);
  const std::string continuation = checkpoint.tokenizer.decode(ids);
  if (options.json) {
    print_json({{"prompt", options.prompt}, {"continuation", continuation}, {"log_probs", log_probs},
        {"bits", bits_name(context.bits())}, {"tokens", options.tokens}, {"seed", options.seed},
        {"prompt_seconds", pace.prompt_seconds()}, {"tokens_per_second", pace.tokens_per_second()}});
  } else {
    print_line(shown(options.prompt) + shown(continuation));
    if (terminal().interactive) {
      print_line(faint(fmt::format("{:.0f} characters a second after a prompt of {} in {}", pace.tokens_per_second(),
          prompt.size(), seconds_text(pace.prompt_seconds()))));
    }
  }
  return 0;
}

void declare_generate(Options& add, GenerateCommandOptions& options) {
  add("--model FILE", &options.model, "A model that qkv train wrote", {.required = true});
  add("--prompt TEXT", &options.prompt, "Text to continue, in characters that the model knows", {.required = true});
  add("--tokens N", &options.tokens, "Characters to add (default 64)");
  add("--greedy", &options.greedy, "Always the most likely character");
  add("--temperature X", &options.temperature, "Sampling temperature: below 1 sharper, above 1 flatter (default 1)",
      {.excludes = "--greedy"});
  add("--top-k N", &options.top_k, "Only the N most likely characters (default 0: all)", {.excludes = "--greedy"});
  add("--seed N", &options.seed, "Same seed, same text (default 0)");
  add("--cache TYPE", &options.cache, "Storage of the KV cache: f32 (default), bf16, f16, int8",
      {.among = {"f32", "bf16", "f16", "int8"}});
  add.json(options.json);
  add.compute(options.compute);
}

const bool generate_added = add_command({"generate", "Continue a prompt with a trained model",
                                            "qkv generate --model model.safetensors --prompt \"abc ab\" --tokens 40"},
    declare_generate, run_generate);

}  // namespace
}  // namespace qkv::cli
