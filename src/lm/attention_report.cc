// Shares of attention by kind of key, and the scores of the two tasks.
#include "qkv/lm/attention_report.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "lm/draw.h"

namespace qkv::inline v0::lm {

HeadReport head_report(View<const float, 2> weights, std::span<const Index> ids, bool causal) {
  const auto length = static_cast<Index>(ids.size());
  check<ShapeError>(weights.size(0) == length && weights.size(1) == length, "head_report",
      "weights must be [T, T] for ", length, " characters: got ", weights);
  HeadReport report;
  const auto add = [](Share& share, double weight) {
    share.mean += weight;
    share.rows_above_half += weight > 0.5 ? 1 : 0;
  };
  for (Index i = 1; i < length; ++i) {
    add(report.self, static_cast<double>(weights(i, i)));
    add(report.previous, static_cast<double>(weights(i, i - 1)));
    add(report.first, static_cast<double>(weights(i, 0)));
    double on_same = 0;
    for (Index j = 0; j < (causal ? i + 1 : length); ++j) {
      if (ids[static_cast<std::size_t>(j)] == ids[static_cast<std::size_t>(i)])
        on_same += static_cast<double>(weights(i, j));
    }
    add(report.same, on_same);
  }
  for (Share* share : {&report.self, &report.previous, &report.first, &report.same}) {
    share->mean /= static_cast<double>(std::max<Index>(length - 1, 1));
  }
  return report;
}

AttentionReport attention_report(
    const AttentionLM& model, std::span<const Index> ids, Context& context, const HeadSet& cut) {
  const AttentionLMConfig& config = model.config();
  const auto length = static_cast<Index>(ids.size());
  const std::vector<Tensor<float>> layers =
      model.attention_weights(View<const Index, 2>(ids.data(), {1, length}), context, cut);

  AttentionReport report;
  report.rows = length - 1;
  report.weights = Tensor<float>({config.num_layers, config.num_heads, length, length});
  const View<float, 4> weights = report.weights;
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    const Tensor<float>& map = layers[static_cast<std::size_t>(layer)];  // [1, H, T, T]
    std::copy(map.span().begin(), map.span().end(), &weights(layer, 0, 0, 0));
    for (Index head = 0; head < config.num_heads; ++head) {
      HeadReport one =
          head_report(View<const float, 2>(&weights(layer, head, 0, 0), {length, length}), ids, config.causal);
      one.layer = layer;
      one.head = head;
      report.heads.push_back(one);
    }
  }
  return report;
}

PreviousScore score_previous(const AttentionLM& model, Index alphabet, Index windows, std::uint64_t seed, Index layer,
    Index head, Context& context) {
  constexpr const char* kFunction = "score_previous";
  const AttentionLMConfig& config = model.config();
  check<OptionError>(layer >= 0 && layer < config.num_layers && head >= 0 && head < config.num_heads, kFunction,
      "layer and head must exist in the model: got layer ", layer, " of ", config.num_layers, ", head ", head, " of ",
      config.num_heads);
  check<OptionError>(config.context >= 2, kFunction, "context must be at least 2: got ", config.context);
  Batch batch;
  BatchSource::previous(alphabet, {windows, config.context}, derived_seed(seed, Draw::kScore, 0)).fill(0, batch);
  const std::vector<Tensor<float>> layers = model.attention_weights(batch.inputs, context);
  const View<const float, 4> weights = layers[static_cast<std::size_t>(layer)];  // [windows, H, T, T]

  PreviousScore score;
  for (Index i = 1; i < config.context; ++i) {
    double sum = 0;
    for (Index b = 0; b < windows; ++b) sum += static_cast<double>(weights(b, head, i, i - 1));
    score.rows.push_back(sum / static_cast<double>(windows));
  }
  score.mean = std::accumulate(score.rows.begin(), score.rows.end(), 0.0) / static_cast<double>(score.rows.size());
  score.lowest = *std::min_element(score.rows.begin(), score.rows.end());
  return score;
}

PredictionScore score_predictions(
    const AttentionLM& model, const BatchSource& source, Index batches, Context& context, const HeadSet& cut) {
  check<OptionError>(batches >= 1, "score_predictions", "batches must be at least 1: got ", batches);
  PredictionScore score;
  AttentionLM::Activations activations;
  Batch batch;
  Index right = 0;
  std::vector<Index> counts(static_cast<std::size_t>(model.config().vocab_size));
  for (Index step = 0; step < batches; ++step) {
    source.fill(step, batch);
    model.forward(batch.inputs, activations, 0, context, cut);
    const double loss = model.loss(batch.targets, activations, context);
    const View<const float, 3> logits = activations.logits();  // [B, T, V]
    Index counted = 0;
    for (Index at = 0; at < batch.targets.count(); ++at) {
      const Index target = batch.targets.data()[at];
      if (target == kNoTarget) continue;
      const float* row = logits.data() + at * logits.size(2);
      right += std::max_element(row, row + logits.size(2)) - row == target ? 1 : 0;
      ++counts[static_cast<std::size_t>(target)];
      ++counted;
    }
    score.loss += loss * static_cast<double>(counted);
    score.targets += counted;
  }
  const auto targets = static_cast<double>(score.targets);
  score.loss /= targets;
  score.accuracy = static_cast<double>(right) / targets;
  score.most_frequent = static_cast<double>(*std::max_element(counts.begin(), counts.end())) / targets;
  return score;
}

}  // namespace qkv::inline v0::lm
