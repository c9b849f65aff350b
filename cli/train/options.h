// The options of `qkv train`, and the run that they mean: tokenizer, model, batches.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "qkv/lm/task.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "ranks/ranks.h"
#include "support/options.h"

namespace qkv::cli {

struct TrainCommandOptions {
  std::string text, task = "text", init, batches;
  std::string out, sample, cut;
  std::vector<std::string> maps;
  std::optional<Index> steps;  // default the task's, or as many as --batches has
  std::uint64_t seed = 0;
  std::optional<Index> tokens;  // default 72 of tasks that continue a text
  bool json = false;
  // The model and how it learns.
  std::optional<Index> context, dim, heads, kv_heads, layers;
  std::string positions;            // empty: the task's, or what the model of --init has
  std::optional<std::string> rope;  // of positions "rotary"
  std::optional<bool> blocks;
  std::optional<Index> batch;  // default the task's, or as many as --batches has
  std::optional<double> dropout, rate;
  double weight_decay = 0, clip = 0;
  std::string schedule = "constant";
  Index warmup = 0;
  ComputeOptions compute;
  ParallelOptions parallel;
};

/// Whether a model of this task continues a text.
bool continues(const std::string& task);

void add_train_options(Options& add, TrainCommandOptions& options);

/// Everything that a run needs.
struct TrainRun {
  lm::CharTokenizer tokenizer;
  lm::AttentionLM model;
  lm::BatchSource source;
  lm::BatchSource fresh;  ///< batches that training does not see, for the scores
  lm::TrainOptions train;
  std::string sample;
  lm::HeadSet cut;  ///< heads that a second report leaves out
};

/// Reads the files; UsageError and the library's errors say what does not fit.
TrainRun make_run(const TrainCommandOptions& options);

}  // namespace qkv::cli
