// Dropout. Most of these show only in many calls: judge/dropout.h finds them.
#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

Entry dropout(std::string_view id, std::string_view says, std::string_view hint) {
  return Entry(id, says, hint, "dropout", {"dropout", "layer"}, Edits{}).shown(Shows::kTraining);
}

constexpr std::string_view kWhere =
    "Let v be the identity, call it in training mode, and look at the output: which numbers are 0?";
constexpr std::string_view kMean = "Average the outputs of a thousand calls in training mode. What should they come to?";

}  // namespace

std::vector<Entry> dropout_entries() {
  return {
      Entry("dropout-on-output-too", "Dropout acts on the weights, and on the output too.", "", "dropout", {"dropout", "layer"},
            Edits{})
          .given_of("said"),
      dropout("dropout-in-evaluation", "Dropout is active in evaluation too.",
              "Call it twice in evaluation mode. Are the outputs equal?"),
      dropout("dropout-not-rescaled",
              "Kept weights are not scaled by 1/(1 - p): in training the output is too small on average.", kMean),
      dropout("dropout-rescaled-otherwise", "Kept weights are scaled by another number than 1/(1 - p).", kMean),
      dropout("dropout-on-scores", "Dropout acts on the scores, before the softmax; it acts on the weights, after it.", kWhere),
      dropout("dropout-on-values",
              "Dropout acts on the values: a number is missing for every query at once. It acts on the weights.", kWhere),
      dropout("dropout-on-output", "Dropout acts on the output; it acts on the weights.", kWhere),
      dropout("dropout-never", "Nothing is dropped in training.", kWhere),
      dropout("dropout-keeps-p", "The share p is kept; the share p is dropped, and 1 - p kept.",
              "How many weights are 0 for p = 0.1?"),
      dropout("dropout-other-rate", "Another share than p is dropped.", "How many weights are 0 for p = 0.1?"),
      dropout("dropout-one-mask", "All heads, or all sequences, lose the same weights: each draws its own.",
              "Compare the zeros of two heads."),
      dropout("dropout-same-every-call", "Every call loses the same weights: the random numbers start anew each time.",
              "Compare the zeros of two calls."),
      Entry("dropout-scaled-in-evaluation",
            "In evaluation the weights are multiplied by 1 - p; here training multiplies by 1/(1 - p), and evaluation does "
            "nothing.",
            kMean, "dropout", {"dropout"},
            after("softmax",
                  [](Work& work) { work["weights"] = work.at("weights") * Number(1 - work.probe.number("dropout")); })),
  };
}

}  // namespace qkv::judge
