// Adam and AdamW over the parameters of a module, the learning-rate schedule, clipping by the global norm.
// Operations in PyTorch's order in f32, so that losses match. Kingma 2014 (arXiv:1412.6980), Loshchilov 2017
// (1711.05101).
#pragma once

#include <span>
#include <vector>

#include "qkv/export.h"
#include "qkv/nn/module.h"
#include "qkv/types.h"

namespace qkv::inline v0::lm {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< 0: Adam. > 0: AdamW, decoupled: value *= 1 - lr * weight_decay before the step
};

/// The optimizer's part of a checkpoint.
struct AdamState {
  Index step = 0;             ///< steps taken
  std::vector<float> mean;    ///< first moment, one per element, in the order of the parameters
  std::vector<float> square;  ///< second moment
};

class QKV_API Adam {
 public:
  /// Throws OptionError for invalid options.
  explicit Adam(Index parameter_count, const AdamOptions& options = {});

  /// values -= lr / (1 - beta1^t) * mean / (sqrt(square) / sqrt(1 - beta2^t) + epsilon)
  void step(std::span<const nn::Parameter> parameters, double learning_rate);

  const AdamState& state() const { return state_; }
  /// Throws ShapeError unless there is one moment of each kind per element of the parameters.
  void load_state(AdamState state);

 private:
  AdamOptions options_;
  AdamState state_;
};

enum class ScheduleKind { kConstant, kCosine };

/// kConstant: rate, after a linear warmup over warmup_steps. kCosine: then half a cosine down to min_rate at
/// total_steps.
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double rate = 3e-3;
  Index warmup_steps = 0;
  double min_rate = 0;

  /// The rate of a step counted from 0. The first of w warmup steps has rate / w.
  QKV_API double at(Index step, Index total_steps) const;
};

/// sqrt(sum of squares of all gradients), summed in f64 in one fixed order.
QKV_API double global_norm(std::span<const nn::Parameter> parameters);
/// Scales the gradients by max_norm / (norm + 1e-6) where the norm exceeds max_norm, as PyTorch does. `norm` is theirs,
/// or that of more gradients of which these are a part.
QKV_API void clip_to_norm(std::span<const nn::Parameter> parameters, double norm, double max_norm);

}  // namespace qkv::inline v0::lm
