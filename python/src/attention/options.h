// AttentionOptions as Python holds them: the values, and the arrays that they borrow.
#pragma once

#include <memory>
#include <vector>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "arrays/masks.h"
#include "qkv/attention.h"
#include "qkv/capture.h"

namespace qkv::python {

struct PositionBiasObject {
  PositionBias value;
  std::shared_ptr<const Array> table{};
};

struct OptionsObject {
  AttentionOptions value;
  std::vector<std::shared_ptr<const Array>> borrowed{};
};

struct CaptureObject {
  Capture what;
  CaptureResult result{};
};

/// Outputs of forward; kind: of weights.
template <class T> AttentionOutputs<T> outputs_of(
    const Array& out, const Array& lse, const Array& weights, const std::string& kind, const Array& lse_low) {
  const auto of = choice<WeightsKind>("[attention] kind", kind,
      {{"softmax", WeightsKind::kSoftmax}, {"applied", WeightsKind::kApplied}, {"scores", WeightsKind::kScores}});
  return {.out = out, .lse = lse, .weights = weights, .kind = of, .lse_low = lse_low};
}

/// None: all defaults, no capture.
inline AttentionOptions options_or_default(const OptionsObject* options, CaptureObject* capture = nullptr) {
  AttentionOptions made = options == nullptr ? AttentionOptions{} : options->value;
  if (capture != nullptr) made.capture = {capture->what, capture->result};
  return made;
}

}  // namespace qkv::python
