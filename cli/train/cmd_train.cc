// `qkv train`: the toy language model from a text to a map of its attention.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "core/escape.h"
#include "map/maps.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/progress.h"
#include "train/options.h"
#include "train/parallel.h"
#include "train/report.h"

namespace qkv::cli {
namespace {

constexpr Index kLines = 10;
constexpr std::size_t kLastLosses = 50;

/// Of no step NaN, which is null in JSON.
double mean_of_last(const std::vector<double>& losses) {
  const std::size_t count = std::min(kLastLosses, losses.size());
  return count == 0 ? std::nan("")
                    : std::accumulate(losses.end() - static_cast<std::ptrdiff_t>(count), losses.end(), 0.0) /
                          static_cast<double>(count);
}

lm::TrainResult train(TrainRun& run, lm::AttentionLM& model, bool quiet, Context& context) {
  Progress progress(run.train.steps, quiet);
  run.train.on_step = [&](const lm::StepReport& report) {
    const Index step = report.step + 1;
    if (std::isnan(report.loss) || (step == report.total_steps && std::isinf(report.loss)))
      throw std::runtime_error(
          fmt::format("the loss is {} at step {}, and nothing was written: lower --lr, or --clip 1",
              std::isnan(report.loss) ? "nan" : "inf", step));
    const std::string words = fmt::format("step {}  loss {:.4f}", step, report.loss);
    if (step == 1 || step == report.total_steps ||
        step * kLines / report.total_steps != report.step * kLines / report.total_steps) {
      progress.line(words);
    }
    progress.update(step, words);
  };
  lm::Trainer trainer(model, run.train);
  lm::TrainResult result = trainer.run(run.source, context);
  for (const nn::Parameter& parameter : model.parameters()) {  // the last update has no loss
    if (std::ranges::all_of(parameter.value, [](float x) { return std::isfinite(x); })) continue;
    throw std::runtime_error(
        fmt::format("{} is not finite after step {}, and nothing was written: lower --lr, or --clip 1", parameter.name,
            run.train.steps));
  }
  return result;
}

Json train_json(
    const TrainRun& run, const TrainCommandOptions& options, const lm::TrainResult& result, const Context& context) {
  const lm::AttentionLMConfig& config = run.model.config();
  return {{"task", options.task}, {"seed", options.seed}, {"steps", run.train.steps}, {"losses", result.losses},
      {"final_loss", mean_of_last(result.losses)}, {"seconds", result.seconds},
      {"parameters", run.model.parameter_count()}, {"threads", context.threads()}, {"isa", isa_name(context.isa())},
      {"model",
          {{"vocab_size", config.vocab_size}, {"context", config.context}, {"embed_dim", config.embed_dim},
              {"num_heads", config.num_heads}, {"num_kv_heads", config.num_kv_heads}, {"num_layers", config.num_layers},
              {"positions", config.positions == lm::PositionKind::kRotary ? "rotary" : "learned"},
              {"blocks", config.blocks}, {"causal", config.causal}, {"dropout", config.dropout}}}};
}

void print_head(const TrainRun& run, const TrainCommandOptions& options, const Context& context) {
  const lm::AttentionLMConfig& config = run.model.config();
  const bool letters = !lm::task_named(options.task, "train").letters.empty(),
             random = letters || options.task == "previous";
  const std::string& file = options.batches.empty() ? options.text : options.batches;
  const std::string of = file.empty() ? "the default text" : one_line(file);
  const std::string text =
      letters && options.text.empty() ? "random letters" : (random ? "random characters of " : "") + of;
  print_line(fmt::format("{}  {} parameters, {} layer{} with {} head{}, context {}, {} characters: {}",
      bold("qkv train"), run.model.parameter_count(), config.num_layers, config.num_layers == 1 ? "" : "s",
      config.num_heads, config.num_heads == 1 ? "" : "s", config.context, run.tokenizer.vocab_size(),
      one_line(run.tokenizer.describe())));
  print_line(faint(fmt::format("task {} on {}, {} steps, seed {}, {} on {} thread{}", options.task, text,
      run.train.steps, options.seed, isa_name(context.isa()), context.threads(), context.threads() == 1 ? "" : "s")));
  print_line();
}

/// On one rank, or the only process. `ranks`: none there.
int run_one(const TrainCommandOptions& options, const Ranks* ranks) {
  const bool speaks = ranks == nullptr || ranks->first();
  Outputs outputs;
  outputs.protect(options.text);
  outputs.protect(options.batches);
  outputs.expect("--out", options.out, {".safetensors"});
  for (const std::string& path : options.maps) expect_map(outputs, "--map", path);
  Context context(ranks != nullptr ? ranks->context() : options.compute.context());
  TrainRun run = make_run(options);
  std::optional<SharedTraining> shared;
  if (ranks != nullptr) shared.emplace(*ranks, run, options.parallel.method, context);
  lm::AttentionLM& model = shared ? shared->model() : run.model;
  static_cast<void>(lm::Trainer(model, run.train));  // impossible options are refused before anything is printed

  if (!options.json && speaks) print_head(run, options, context);
  const lm::TrainResult result = train(run, model, options.json || !speaks, context);
  if (shared) shared->finish();
  if (!speaks) return 0;
  const TrainReport report = make_report(run, options, {}, context);
  if (run.cut.empty()) run.cut = induction_heads(report);
  std::optional<TrainReport> cut;
  if (!run.cut.empty()) cut = make_report(run, options, run.cut, context);
  if (!options.out.empty()) {
    outputs.add_safetensors(
        options.out, lm::checkpoint_to_state(run.model, run.tokenizer, options.task, run.train.steps));
  }
  for (const std::string& path : options.maps) add_map(outputs, path, report_map(report));
  outputs.commit();

  if (options.json) {
    Json document = train_json(run, options, result, context);
    if (ranks != nullptr) document["parallel"] = {{"method", options.parallel.method}, {"ranks", ranks->size()}};
    add_report(document, report);
    if (cut) add_report(document["cut"], *cut);
    print_json(document);
    return 0;
  }
  print_line();
  if (!result.losses.empty())
    print_line(fmt::format("trained in {}; mean of the last {} losses {:.4f}", seconds_text(result.seconds),
        std::min(kLastLosses, result.losses.size()), mean_of_last(result.losses)));
  print_report(report, cut ? &*cut : nullptr);
  const auto wrote = [](const std::string& what, const std::string& path) {
    print_line(
        fmt::format("wrote {}  {}", what, one_line(std::filesystem::absolute(path).lexically_normal().string())));
  };
  if (!options.out.empty() || !options.maps.empty()) print_line();
  if (!options.out.empty()) wrote("model", options.out);
  for (const std::string& path : options.maps) wrote("map  ", path);
  return 0;
}

int run_train(const TrainCommandOptions& options) {
  if (!options.parallel.any()) return run_one(options, nullptr);
  require_method(options.parallel.method);
  int code = 0;
  run_ranks("train", options.parallel, options.compute, [&](Ranks& ranks) { code = run_one(options, &ranks); });
  return code;
}

const bool train_added = add_command({"train", "Train the toy language model and show its attention",
                                         "qkv train --steps 800 --out model.safetensors --map map.png"},
    add_train_options, run_train);

}  // namespace
}  // namespace qkv::cli
