// Adam, AdamW, schedule and clipping. torch/optim/adam.py (_single_tensor_adam) defines the order of the operations.
#include "qkv/lm/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/maths.h"

namespace qkv::inline v0::lm {
namespace {

/// One step's constants, rounded to f32 where PyTorch rounds them.
struct AdamStep {
  float mean_weight;    // 1 - beta1
  float square_keep;    // beta2
  float square_weight;  // 1 - beta2
  float square_root;    // sqrt(1 - beta2^t)
  float epsilon;
  float size;   // lr / (1 - beta1^t)
  float decay;  // 1 - lr * weight_decay
};

/// value, gradient, mean, square [n]
void adam_update(float* value, const float* gradient, float* mean, float* square, std::size_t n, const AdamStep& s) {
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    mean[i] = mean[i] + s.mean_weight * (g - mean[i]);
    square[i] = square[i] * s.square_keep + s.square_weight * g * g;
    const float denominator = std::sqrt(square[i]) / s.square_root + s.epsilon;
    value[i] = value[i] * s.decay - s.size * mean[i] / denominator;
  }
}

}  // namespace

Adam::Adam(Index parameter_count, const AdamOptions& options) : options_(options) {
  const auto beta_fits = [](double beta) { return beta >= 0 && beta < 1; };
  check<OptionError>(beta_fits(options.beta1) && beta_fits(options.beta2), "Adam", "betas must be in [0, 1): got ",
      options.beta1, " and ", options.beta2);
  check<OptionError>(options.epsilon >= 0 && std::isfinite(options.epsilon), "Adam",
      "epsilon must be finite and not negative: got ", options.epsilon);
  check<OptionError>(options.weight_decay >= 0 && std::isfinite(options.weight_decay), "Adam",
      "weight_decay must be finite and not negative: got ", options.weight_decay);
  state_.mean.resize(static_cast<std::size_t>(parameter_count));
  state_.square.resize(state_.mean.size());
}

void Adam::load_state(AdamState state) {
  check<ShapeError>(state.mean.size() == state_.mean.size() && state.square.size() == state_.square.size(),
      "Adam::load_state", "moments must have one number per element of the parameters (", state_.mean.size(), "): got ",
      state.mean.size(), " and ", state.square.size());
  check<OptionError>(state.step >= 0, "Adam::load_state", "step must not be negative: got ", state.step);
  state_ = std::move(state);
}

void Adam::step(std::span<const nn::Parameter> parameters, double learning_rate) {
  std::size_t count = 0;
  for (const nn::Parameter& parameter : parameters) {
    check<ShapeError>(parameter.value.size() <= state_.mean.size() - count, "Adam::step", "parameters must have ",
        state_.mean.size(), " elements in total: got more at ", parameter.name);
    count += parameter.value.size();
  }
  check<ShapeError>(count == state_.mean.size(), "Adam::step", "parameters must have ", state_.mean.size(),
      " elements in total: got ", count);
  ++state_.step;
  const auto t = static_cast<double>(state_.step);
  const AdamStep s{.mean_weight = static_cast<float>(1 - options_.beta1),
      .square_keep = static_cast<float>(options_.beta2),
      .square_weight = static_cast<float>(1 - options_.beta2),
      .square_root = static_cast<float>(std::sqrt(1 - maths::pow(options_.beta2, t))),
      .epsilon = static_cast<float>(options_.epsilon),
      .size = static_cast<float>(learning_rate / (1 - maths::pow(options_.beta1, t))),
      .decay = static_cast<float>(1 - learning_rate * options_.weight_decay)};
  std::size_t at = 0;
  for (const nn::Parameter& parameter : parameters) {
    const std::size_t n = parameter.value.size();
    adam_update(
        parameter.value.data(), parameter.gradient.data(), state_.mean.data() + at, state_.square.data() + at, n, s);
    at += n;
  }
}

double LearningRateSchedule::at(Index step, Index total_steps) const {
  const auto share = [](Index part, Index whole) { return static_cast<double>(part) / static_cast<double>(whole); };
  if (step < warmup_steps) return rate * share(step + 1, warmup_steps);
  if (kind == ScheduleKind::kConstant || total_steps <= warmup_steps) return rate;
  const double done = std::min(1.0, share(step - warmup_steps, total_steps - warmup_steps));
  return min_rate + (rate - min_rate) * (1 + maths::sine_cosine(std::numbers::pi * done).cosine) / 2;
}

double global_norm(std::span<const nn::Parameter> parameters) {
  double sum = 0;
  for (const nn::Parameter& parameter : parameters) {
    for (const float g : parameter.gradient) sum += static_cast<double>(g) * static_cast<double>(g);
  }
  return std::sqrt(sum);
}

void clip_to_norm(std::span<const nn::Parameter> parameters, double norm, double max_norm) {
  check<OptionError>(max_norm > 0, "clip_to_norm", "max_norm must be above 0: got ", max_norm);
  if (norm <= max_norm) return;  // of NaN every gradient becomes NaN
  const auto factor = static_cast<float>(max_norm / (norm + 1e-6));
  for (const nn::Parameter& parameter : parameters) {
    for (float& g : parameter.gradient) g *= factor;
  }
}

}  // namespace qkv::inline v0::lm
