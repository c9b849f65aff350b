// `qkv generate`: continues a prompt with a trained model. Not: training.
#include "command.h"
#include "core/escape.h"
#include "files.h"
#include "json.h"
#include "options.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/trainer.h"

namespace qkv::cli {
namespace {

struct GenerateCommandOptions {
  std::string model, prompt;
  Index tokens = 64, top_k = 0;
  double temperature = 1;
  bool greedy = false, json = false;
  std::uint64_t seed = 0;
  ComputeOptions compute;
};

/// A text as it is for a file or a pipe; on a terminal without what could drive it.
std::string shown(const std::string& text) {
  if (!terminal().interactive) return text;
  std::string safe;
  for (const std::string& character : view::characters(text)) {
    safe += character == "\n" || character == "\t" || character == " " ? character : one_line(character);
  }
  return safe;
}

int run(const GenerateCommandOptions& options) {
  const StateDict state = load_safetensors("--model", options.model);
  const lm::Checkpoint checkpoint = about_file("--model", options.model, [&] { return lm::checkpoint_from_state(state); });
  if (options.prompt.empty()) throw UsageError("--prompt must have at least one character");
  const std::vector<Index> prompt = about("--prompt", [&] { return checkpoint.tokenizer.encode(options.prompt); });

  Context context(options.compute.context());
  const lm::GenerateOptions generate{.tokens = options.tokens,
                                     .greedy = options.greedy,
                                     .temperature = options.temperature,
                                     .top_k = options.top_k,
                                     .allowed_ids = checkpoint.tokenizer.vocab_size(),
                                     .seed = options.seed};
  const std::vector<Index> ids = lm::generate(checkpoint.model, prompt, generate, context);
  const std::string continuation = checkpoint.tokenizer.decode(ids);
  if (options.json) {
    print_json(
        {{"prompt", options.prompt}, {"continuation", continuation}, {"tokens", options.tokens}, {"seed", options.seed}});
  } else {
    print_line(shown(options.prompt) + shown(continuation));
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<GenerateCommandOptions>();
  app.add_option("--model", options->model, "A model that qkv train wrote")->type_name("FILE")->required();
  app.add_option("--prompt", options->prompt, "What to continue; characters that the model knows")
      ->type_name("TEXT")
      ->required();
  app.add_option("--tokens", options->tokens, "Characters to add (default 64)")->type_name("N");
  app.add_flag("--greedy", options->greedy, "Always the likeliest character");
  app.add_option("--temperature", options->temperature, "Below 1: surer, above: freer (default 1)")->type_name("X");
  app.add_option("--top-k", options->top_k, "Only the K likeliest characters (default 0: all)")->type_name("K");
  app.add_option("--seed", options->seed, "Same seed, same text (default 0)")->type_name("N");
  add_json_option(app, options->json);
  add_compute_options(app, options->compute);
  return [options] { return run(*options); };
}

const bool added = add_command({"generate", "Continue a prompt with a trained model",
                                "qkv generate --model model.safetensors --prompt \"abc ab\" --tokens 40", declare});

}  // namespace
}  // namespace qkv::cli
