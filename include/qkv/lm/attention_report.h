// The attention of a trained model: shares of weight by kind of key, per layer and head. Not: an interpretation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/data.h"

namespace qkv::inline v0::lm {

/// Over the rows i >= 1 (T = 1 has none: both are 0).
struct Share {
  double mean = 0;            ///< mean share of the row's weight on such keys
  Index rows_above_half = 0;  ///< rows with more than half of their weight there
};

/// The kinds overlap: their shares need not sum to 1.
struct HeadReport {
  Index layer = 0;
  Index head = 0;
  Share self;      ///< j = i
  Share previous;  ///< j = i - 1
  Share first;     ///< j = 0
  Share same;      ///< all j with the same character as i: j <= i when causal, any j otherwise
};

struct AttentionReport {
  std::vector<HeadReport> heads;  ///< by layer, then head
  Tensor<float> weights;          ///< [L, H, T, T]
  Index rows = 0;                 ///< T - 1
};

/// The report of one head: weights [T, T] for characters ids [T].
QKV_API HeadReport head_report(View<const float, 2> weights, std::span<const Index> ids, bool causal);
QKV_API AttentionReport attention_report(const AttentionLM& model, std::span<const Index> ids,
    Context& context = Context::default_context(), const HeadSet& cut = {});

/// The weight of one head on i - 1, over fresh windows of the `previous` task, drawn from another random stream than
/// training's, whatever the seeds.
struct PreviousScore {
  double mean = 0;           ///< over rows i >= 1 and windows
  double lowest = 0;         ///< the smallest of the rows' means over the windows
  std::vector<double> rows;  ///< [T - 1]: row i at i - 1
};
QKV_API PreviousScore score_previous(const AttentionLM& model, Index alphabet, Index windows = 64,
    std::uint64_t seed = 1, Index layer = 0, Index head = 0, Context& context = Context::default_context());

/// How often the largest logit is the target, over batches of a source that training did not see (another seed).
struct PredictionScore {
  double accuracy = 0;
  double loss = 0;           ///< mean cross-entropy
  double most_frequent = 0;  ///< accuracy of always predicting the most frequent target: the baseline
  Index targets = 0;         ///< number of targets counted
};
QKV_API PredictionScore score_predictions(const AttentionLM& model, const BatchSource& source, Index batches = 4,
    Context& context = Context::default_context(), const HeadSet& cut = {});

}  // namespace qkv::inline v0::lm
