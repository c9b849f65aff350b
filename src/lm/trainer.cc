// Trainer: steps, one by one, and their loop.
#include "qkv/lm/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/check.h"
#include "lm/draw.h"
#include "lm/model.h"

namespace qkv::inline v0::lm {
namespace {

/// Switches the model to training mode for its lifetime, then back.
class TrainingMode {
 public:
  explicit TrainingMode(AttentionLM& model) : model_(model), before_(model.impl().training) { model_.train(true); }
  ~TrainingMode() { model_.train(before_); }
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  AttentionLM& model_;
  bool before_;
};

/// The sequences and tokens of a share.
void copy_share(const Batch& whole, const BatchShare& share, Batch& own) {
  const bool every = share.part == nullptr;
  const std::span<const Index> positions =
      every ? std::span<const Index>() : std::span<const Index>(share.part->positions);
  const Index length = every ? share.length : std::ssize(positions);
  check<ShapeError>(whole.inputs.size(0) == share.batch && whole.inputs.size(1) == share.length, "Trainer",
      "batches must be [", share.batch, ", ", share.length, "], as the ranks share them: got ", whole.inputs);
  for (const Index position : positions) {
    check<OptionError>(position >= 0 && position < share.length, "Trainer", "positions of a part must be in [0, ",
        share.length, "): got ", position);
  }
  const auto copy = [&](const Tensor<Index>& from, Tensor<Index>& to) {
    if (to.count() != share.sequences * length) to = Tensor<Index>({share.sequences, length});
    for (Index b = 0; b < share.sequences; ++b) {
      const Index* row = from.data() + (share.first_sequence + b) * share.length;
      for (Index i = 0; i < length; ++i)
        to.data()[b * length + i] = row[every ? i : positions[static_cast<std::size_t>(i)]];
    }
  };
  copy(whole.inputs, own.inputs);
  copy(whole.targets, own.targets);
}

const TrainOptions& checked(const TrainOptions& options) {
  const LearningRateSchedule& s = options.schedule;
  check<OptionError>(options.steps >= 0 && s.warmup_steps >= 0, "Trainer",
      "steps and warmup_steps must not be negative: got ", options.steps, " and ", s.warmup_steps);
  check<OptionError>(std::isfinite(s.rate) && s.rate >= 0 && std::isfinite(s.min_rate) && s.min_rate >= 0, "Trainer",
      "learning rates must be finite and not negative: got ", s.rate, " and ", s.min_rate);
  check<OptionError>(options.clip_norm >= 0, "Trainer", "clip_norm must not be negative: got ", options.clip_norm);
  return options;
}

}  // namespace

Trainer::Trainer(AttentionLM& model, const TrainOptions& options)
    : model_(model),
      parameters_(model.parameters()),
      options_(checked(options)),
      adam_(model.parameter_count(), options_.adam),
      activations_(options_.share) {}

double Trainer::step(const BatchSource& source, Context& context) {
  const TrainingMode training(model_);
  const Index step = steps_done();
  source.fill(step, batch_);
  const bool whole = options_.share.batch == 0;
  if (!whole) copy_share(batch_, options_.share, own_);
  const Batch& batch = whole ? batch_ : own_;
  const std::span<const Index> all = batch_.targets.span();
  const auto targets = std::count_if(all.begin(), all.end(), [](Index target) { return target != kNoTarget; });
  model_.forward(batch.inputs, activations_, derived_seed(options_.seed, Draw::kDropout, -1, step), context);
  double loss = model_.loss(batch.targets, activations_, context, whole ? 0 : targets);
  model_.backward(activations_, context);
  if (options_.reduce) loss = options_.reduce(loss, parameters_);
  if (options_.clip_norm > 0) {
    clip_to_norm(
        parameters_, options_.norm ? options_.norm(parameters_) : global_norm(parameters_), options_.clip_norm);
  }
  const double rate = options_.schedule.at(step, options_.steps);
  adam_.step(parameters_, rate);
  if (options_.on_step) options_.on_step({step, options_.steps, loss, rate});
  return loss;
}

TrainResult Trainer::run(const BatchSource& source, Context& context) {
  constexpr const char* kFunction = "Trainer::run";
  const AttentionLMConfig& config = model_.config();
  check<OptionError>(source.vocab_size() <= config.vocab_size, kFunction,
      "ids of the batches must be below vocab_size ", config.vocab_size, ": got ids up to ", source.vocab_size() - 1);
  check<OptionError>(source.shape().context <= config.context, kFunction,
      "batches must be no longer than the model's context ", config.context, ": got ", source.shape().context);
  check<OptionError>(source.steps() < 0 || source.steps() >= options_.steps, kFunction,
      "there must be a batch for each of the ", options_.steps, " steps: got ", source.steps());
  TrainResult result;
  const auto start = std::chrono::steady_clock::now();
  while (steps_done() < options_.steps) result.losses.push_back(step(source, context));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace qkv::inline v0::lm
