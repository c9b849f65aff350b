// Trainer: steps, one by one, and their loop.
#include "qkv/lm/trainer.h"

#include <chrono>
#include <cmath>

#include "core/check.h"
#include "lm/draw.h"

namespace qkv::inline v0::lm {
namespace {

/// Switches the model to training mode for its lifetime.
class TrainingMode {
 public:
  explicit TrainingMode(AttentionLM& model) : model_(model) { model_.train(true); }
  ~TrainingMode() { model_.train(false); }
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  AttentionLM& model_;
};

const TrainOptions& checked(const TrainOptions& options) {
  const LearningRateSchedule& s = options.schedule;
  check<OptionError>(options.steps >= 0 && s.warmup_steps >= 0, "Trainer", "steps and warmup_steps must not be negative: got ",
                     options.steps, " and ", s.warmup_steps);
  check<OptionError>(std::isfinite(s.rate) && s.rate >= 0 && std::isfinite(s.min_rate) && s.min_rate >= 0, "Trainer",
                     "learning rates must be finite and not negative: got ", s.rate, " and ", s.min_rate);
  check<OptionError>(options.clip_norm >= 0, "Trainer", "clip_norm must not be negative: got ", options.clip_norm);
  return options;
}

}  // namespace

Trainer::Trainer(AttentionLM& model, TrainOptions options)
    : model_(model),
      parameters_(model.parameters()),
      options_(checked(options)),
      adam_(model.parameter_count(), options_.adam) {}

double Trainer::step(const BatchSource& source, Context& context) {
  const TrainingMode training(model_);
  const Index step = steps_done();
  source.fill(step, batch_);
  model_.forward(batch_.inputs, activations_, derived_seed(options_.seed, Draw::kDropout, -1, step), context);
  double loss = model_.loss(batch_.targets, activations_, context);
  model_.backward(activations_, context);
  if (options_.reduce) loss = options_.reduce(loss, batch_, parameters_);
  if (options_.clip_norm > 0) clip_global_norm(parameters_, options_.clip_norm);
  const double rate = options_.schedule.at(step, options_.steps);
  adam_.step(parameters_, rate);
  if (options_.on_step) options_.on_step({step, options_.steps, loss, rate});
  return loss;
}

TrainResult Trainer::run(const BatchSource& source, Context& context) {
  constexpr const char* kFunction = "Trainer::run";
  const AttentionLMConfig& config = model_.config();
  check<OptionError>(source.vocab_size() <= config.vocab_size, kFunction, "ids of the batches must be below vocab_size ",
                     config.vocab_size, ": got ids up to ", source.vocab_size() - 1);
  check<OptionError>(source.shape().context <= config.context, kFunction, "batches must be no longer than the model's context ",
                     config.context, ": got ", source.shape().context);
  check<OptionError>(source.steps() < 0 || source.steps() >= options_.steps, kFunction,
                     "there must be a batch for each of the ", options_.steps, " steps: got ", source.steps());
  TrainResult result;
  const auto start = std::chrono::steady_clock::now();
  while (steps_done() < options_.steps) result.losses.push_back(step(source, context));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace qkv::inline v0::lm
