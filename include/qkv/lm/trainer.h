// Trainer: batches -> loss -> gradients -> Adam, step by step; and the checkpoint of the result.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/data.h"
#include "qkv/lm/optimizer.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0::lm {

struct StepReport {
  Index step = 0;  ///< from 0
  Index total_steps = 0;
  double loss = 0;  ///< before this step's update
  double learning_rate = 0;
};

struct TrainOptions {
  Index steps = 800;
  LearningRateSchedule schedule{};
  AdamOptions adam{};
  double clip_norm = 0;    ///< 0: off
  std::uint64_t seed = 0;  ///< of dropout only; a batch source has its own
  /// Where ranks divide a batch: this rank's share of it, and what is called after backward with this rank's loss and
  /// gradients: makes the gradients those of the whole batch and returns its loss.
  BatchShare share{};
  std::function<double(double loss, std::span<const nn::Parameter> parameters)> reduce{};
  /// Where ranks divide the parameters (AttentionLM::shard): the norm of all gradients, for clipping; none:
  /// global_norm.
  std::function<double(std::span<const nn::Parameter> parameters)> norm{};
  std::function<void(const StepReport&)> on_step{};  ///< called after every step; an exception from it ends the run
};

struct TrainResult {
  std::vector<double> losses;  ///< one per step of this run
  double seconds = 0;
};

class QKV_API Trainer {
 public:
  /// Borrows the model, which must not be loaded or moved meanwhile. Throws OptionError for invalid options.
  Trainer(AttentionLM& model, const TrainOptions& options);

  /// Runs from steps_done() to options.steps. Throws OptionError when the source has fewer steps, or ids outside the
  /// vocabulary.
  TrainResult run(const BatchSource& source, Context& context = Context::default_context());
  /// One step; returns its loss. Reuses the memory of the previous step.
  double step(const BatchSource& source, Context& context = Context::default_context());

  Index steps_done() const { return adam_.state().step; }
  const Adam& adam() const { return adam_; }
  /// Continues from a checkpoint.
  void resume(AdamState state) { adam_.load_state(std::move(state)); }

 private:
  AttentionLM& model_;
  std::vector<nn::Parameter> parameters_;
  TrainOptions options_;
  Adam adam_;
  Batch batch_, own_;  // the whole, and this rank's share of it
  AttentionLM::Activations activations_;
};

/// A trained model with all that is needed to use it again. In the file: parameters by name, with an optimizer state
/// also adam.mean and adam.square; configuration, tokenizer, task and step in the metadata.
struct Checkpoint {
  AttentionLM model;
  CharTokenizer tokenizer;
  std::string task = "text";  ///< the name of a Task (task.h)
  Index step = 0;
  std::optional<AdamState> adam;
};

/// As named tensors: io::save_safetensors(path, checkpoint_to_state(...)).
QKV_API StateDict checkpoint_to_state(const AttentionLM& model, const CharTokenizer& tokenizer, const std::string& task,
    Index step, const AdamState* adam = nullptr);
/// Throws OptionError, ShapeError or FormatError that say what is missing or wrong.
QKV_API Checkpoint checkpoint_from_state(const StateDict& state);

}  // namespace qkv::inline v0::lm
