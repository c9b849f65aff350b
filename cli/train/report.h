// The report of `qkv train` on a trained model: only what was counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "qkv/lm/attention_report.h"
#include "qkv/view/heatmap.h"
#include "qkv/view/kinds.h"
#include "support/json.h"
#include "train/options.h"

namespace qkv::cli {

struct TrainReport {
  std::string task, sample;
  lm::HeadSet cut;         ///< heads that were left out
  std::vector<Index> ids;  ///< of the sample as the model saw it; a hidden character has its own id
  std::vector<std::string> labels;
  lm::AttentionReport attention;
  std::optional<lm::PreviousScore> previous;  ///< of the first layer's best head, --task previous
  Index previous_head = 0;
  std::optional<lm::PredictionScore> predicted;  ///< not --task previous, but where heads are cut
  std::vector<view::HeadKind> kinds;             ///< by layer, then head: --task same and induction
  std::vector<float> next;                       ///< shares of the symbols behind the sample
  std::string continuation;
};

/// By layer, then head; of `run`'s first fresh batch. `cut`: heads that are left out.
std::vector<view::HeadKind> kinds_of_model(const TrainRun& run, const lm::HeadSet& cut, Context& context);

/// Heads of the kind induction, which --task induction leaves out where --cut names none.
lm::HeadSet induction_heads(const TrainReport& report);

TrainReport make_report(
    const TrainRun& run, const TrainCommandOptions& options, const lm::HeadSet& cut, Context& context);

view::AttentionMap report_map(const TrainReport& report);
/// `cut`: the same model without heads, beside it; null: none.
void print_report(const TrainReport& report, const TrainReport* cut);
/// Adds "sample" and the rest of the report to `document`.
void add_report(Json& document, const TrainReport& report);

}  // namespace qkv::cli
