// The kinds of a trained model's heads (qkv/view/kinds.h), over windows that training did not draw.
#include <algorithm>
#include <cmath>

#include "train/report.h"

namespace qkv::cli {
namespace {

/// lse and entropy of every row of a layer [B, H, T].
struct Rows {
  Tensor<double> lse, entropy;

  Rows(const lm::LayerTrace& layer, bool causal) : lse(layer.writes.sizes()), entropy(layer.writes.sizes()) {
    const Index length = lse.size(2);
    for (Index row = 0; row < lse.count(); ++row) {
      const float* const scores = layer.scores.data() + row * length;
      const Index keys = causal ? row % length + 1 : length;
      const double most = *std::max_element(scores, scores + keys);
      double sum = 0, logs = 0;
      for (Index j = 0; j < keys; ++j) {
        const auto weight = static_cast<double>(layer.weights.data()[row * length + j]);
        sum += std::exp(scores[j] - most);
        if (weight > 0) logs += weight * std::log(weight);
      }
      lse.data()[row] = most + std::log(sum);
      entropy.data()[row] = -logs;
    }
  }
};

/// Sequence b of x [B, H, T].
View<const double, 2> sequence(const Tensor<double>& x, Index b) {
  return {x.data() + b * x.size(1) * x.size(2), {x.size(1), x.size(2)}};
}
/// Of x [B, H, T, D].
View<const float, 3> sequence(const Tensor<float>& x, Index b) {
  return {x.data() + b * x.size(1) * x.size(2) * x.size(3), {x.size(1), x.size(2), x.size(3)}};
}

}  // namespace

std::vector<view::HeadKind> kinds_of_model(const TrainRun& run, const lm::HeadSet& cut, Context& context) {
  lm::Batch batch;
  run.fresh.fill(0, batch);
  const lm::Trace trace = run.model.trace(batch.inputs, {.cut = cut}, context);
  const bool causal = run.model.config().causal;
  std::vector<view::HeadKind> all;
  for (const lm::LayerTrace& layer : trace.layers) {
    const Rows rows(layer, causal);
    std::vector<view::HeadCall> calls;
    for (Index b = 0; b < batch.inputs.size(0); ++b) {
      view::HeadCall call{.q = sequence(layer.q, b),
          .k = sequence(layer.k, b),
          .lse = sequence(rows.lse, b),
          .entropy = sequence(rows.entropy, b),
          .scale = 1 / std::sqrt(static_cast<double>(layer.q.size(3)))};
      if (causal) call.mask = Mask::causal();
      const Index* ids = batch.inputs.data() + b * batch.inputs.size(1);
      call.ids.assign(ids, ids + batch.inputs.size(1));
      calls.push_back(std::move(call));
    }
    for (view::HeadKind& kind : view::kinds_of_heads(calls)) all.push_back(std::move(kind));
  }
  return all;
}

}  // namespace qkv::cli
