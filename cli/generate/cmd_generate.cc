// `qkv generate`: continues a prompt with a trained model.
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
  std::string model, prompt, cut;
  Index tokens = 64, top_k = 0;
  double temperature = 1;
  bool greedy = false, json = false;
  std::uint64_t seed = 0;
  ComputeOptions compute;
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
  const std::vector<Index> prompt = about("--prompt", [&] { return checkpoint.tokenizer.encode(options.prompt); });

  if (options.temperature == 0) throw UsageError("--temperature must be above 0: got 0 (--greedy is its limit)");
  Context context(options.compute.context());
  std::vector<double> log_probs;
  const lm::GenerateOptions generate{.tokens = options.tokens,
      .greedy = options.greedy,
      .temperature = options.temperature,
      .top_k = options.top_k,
      .allowed_ids = checkpoint.tokenizer.vocab_size(),
      .seed = options.seed,
      .cut = options.cut.empty() ? lm::HeadSet{} : parse_heads("--cut", options.cut, checkpoint.model.config()),
      .on_token = [&](Index, double log_prob) { log_probs.push_back(log_prob); }};
  const std::vector<Index> ids = lm::generate(checkpoint.model, prompt, generate, context);
  const std::string continuation = checkpoint.tokenizer.decode(ids);
  if (options.json) {
    print_json({{"prompt", options.prompt}, {"continuation", continuation}, {"log_probs", log_probs},
        {"bits", bits_name(context.bits())}, {"tokens", options.tokens}, {"seed", options.seed}, {"cut", options.cut}});
  } else {
    print_line(shown(options.prompt) + shown(continuation));
  }
  return 0;
}

void declare_generate(Options& add, GenerateCommandOptions& options) {
  add("--model FILE", &options.model, "A model that qkv train wrote", {.required = true});
  add("--prompt TEXT", &options.prompt, "Text to continue, in characters that the model knows", {.required = true});
  add("--tokens N", &options.tokens, "Characters to add (default 64)");
  add("--greedy", &options.greedy, "Always the most likely character");
  add("--temperature X", &options.temperature, "Sampling temperature: below 1 sharper, above 1 flatter (default 1)",
      {.excludes = {"--greedy"}});
  add("--top-k N", &options.top_k, "Only the N most likely characters (default 0: all)", {.excludes = {"--greedy"}});
  add("--seed N", &options.seed, "Same seed, same text (default 0)", {.excludes = {"--greedy"}});
  add("--cut L:H,...", &options.cut, "Leave out heads, such as 0:1,1:0 (layer 0, head 1; layer 1, head 0)");
  add.json(options.json);
  add.compute(options.compute);
}

const bool generate_added = add_command({"generate", "Continue a prompt with a trained model",
                                            "qkv generate --model model.safetensors --prompt \"abc ab\" --tokens 40"},
    declare_generate, run_generate);

}  // namespace
}  // namespace qkv::cli
