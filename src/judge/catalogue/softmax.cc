// From scores to weights.
#include <cmath>
#include <limits>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Edit weights_by(std::function<Array(const Array& scores)> rule) {
  return instead("softmax", [rule = std::move(rule)](Work& work) { work["weights"] = rule(work.at("scores")); });
}

Array each(const Array& scores, Number (*f)(Number)) { return map(scores, f); }

Entry softmax_entry(std::string_view id, std::string_view says, std::string_view hint, Edit edit,
                    std::vector<std::string_view> parts = {"softmax"}) {
  return Entry(id, says, hint, "softmax", std::move(parts), std::move(edit)).in("softmax");
}

/// Without a softmax the number that stands for a hidden score shows: a family.
Entry by_fill(std::string_view id, std::string_view says, std::string_view hint, std::function<Array(const Array&)> rule) {
  return Entry(id, says, hint, "softmax", {"softmax"},
               [rule = std::move(rule)](double fill) {
                 return Edits{instead("mask", [fill](Work& work) { fill_hidden(work, fill); }), weights_by(rule),
                              instead("empty", [](Work&) {})};
               })
      .in("softmax")
      .tried([](const Probe&) {
        return std::vector<double>{-kInfinity, -1e9, -1e20, -1e4, 0};
      })
      .fixing_empty_rows();
}

/// argmax, or a comparison with the row's maximum, which several keys may share.
Entry hard_maximum(bool shared) {
  return Entry("hard-maximum", "Each query takes the one key that fits best (argmax); softmax mixes all.",
               "How many weights of a row are not zero?", "softmax", {"softmax"}, before("empty", [shared](Work& work) {
                 const Array& scores = work.at("scores");
                 Array& weights = work["weights"];
                 const Index keys = scores.size(-1);
                 for (Index n = 0; n < scores.count(); n += keys) {
                   Index best = 0;
                   for (Index j = 1; j < keys; ++j) best = scores[n + j].value > scores[n + best].value ? j : best;
                   for (Index j = 0; j < keys; ++j)
                     weights[n + j] = j == best || (shared && scores[n + j].value == scores[n + best].value) ? 1 : 0;
                 }
               }));
}

}  // namespace

std::vector<Entry> softmax_entries() {
  const std::string_view row = "Add up a row of the weights, then a column. Which should give 1?";
  return {
      softmax_entry("softmax-over-queries",
                    "The softmax runs over the queries: columns sum to 1, rows do not. It runs over the keys (dim=-1).", row,
                    weights_by([](const Array& s) { return softmax(s, -2); })),
      softmax_entry("softmax-over-heads", "The softmax runs over the heads; it runs over the keys (dim=-1).", row,
                    weights_by([](const Array& s) {
                      need(s.size(1) > 1);
                      return softmax(s, 1);
                    }),
                    {"heads", "function"}),
      softmax_entry("softmax-over-batch", "The softmax runs over the batch; it runs over the keys (dim=-1).", row,
                    weights_by([](const Array& s) { return softmax(s, 0); })),
      softmax_entry("softmax-over-all",
                    "The softmax runs over queries and keys together: the whole matrix sums to 1, rows do not.", row,
                    weights_by([](const Array& s) {
                      return reshape(softmax(reshape(s, {s.size(0), s.size(1), s.size(2) * s.size(3)})), s.shape);
                    })),
      softmax_entry("no-max-subtraction", "exp of a large score overflows: the row's maximum is not subtracted first.",
                    "What is exp(1000)?", weights_by([](const Array& s) { return softmax(s, -1, false); })),
      Entry("softmax-twice", "The softmax is applied twice: the weights are much too even.",
            "How large can the largest weight of a row become?", "softmax", {"softmax"},
            after("softmax", becomes("weights", [](const Array& a) { return softmax(a); }))),
      by_fill("no-softmax", "There is no softmax: the scores themselves multiply the values.", row,
              [](const Array& s) { return s; }),
      by_fill("normalised-by-length", "The scores are divided by the number of keys; a softmax is meant.", row,
              [](const Array& s) { return s * Number(1 / static_cast<double>(s.size(-1))); }),
      by_fill("tanh-weights", "The weights are tanh of the scores; a softmax is meant.", row,
              [](const Array& s) { return each(s, [](Number x) { return tanh(x); }); }),
      by_fill("sigmoid", "The weights are sigmoids of single scores: rows do not sum to 1. A softmax is meant.", row,
              [](const Array& s) { return each(s, [](Number x) { return sigmoid(x); }); }),
      by_fill("relu-weights", "The weights are relu of the scores; a softmax is meant.", row,
              [](const Array& s) { return each(s, [](Number x) { return max(x, Number(0)); }); }),
      by_fill("relu-weights", "The weights are relu of the scores, divided by their sum; a softmax is meant.", row,
              [](const Array& s) { return over_row_sum(each(s, [](Number x) { return max(x, Number(0)); })); }),
      by_fill("weights-not-normalised", "The exponentials are not divided by their sum.", row,
              [](const Array& s) { return each(s, [](Number x) { return exp(x); }); }),
      by_fill("weights-not-normalised", "The exponentials are not divided by their sum.", row,
              [](const Array& s) {
                Array out = s;
                const Index keys = s.size(-1);
                for (Index n = 0; n < s.count(); n += keys) {
                  double largest = -kInfinity;
                  for (Index j = 0; j < keys; ++j) largest = std::fmax(largest, s[n + j].value);
                  for (Index j = 0; j < keys; ++j) out[n + j] = exp(s[n + j] - Number(largest));
                }
                return out;
              }),
      by_fill("scores-over-sum", "The scores are divided by their sum, without exp; a softmax is meant.", row, over_row_sum),
      softmax_entry("softmax-base-2", "The softmax raises 2, not e, to the scores.", "exp or exp2?",
                    weights_by([](const Array& s) { return softmax(s * Number(std::log(2.0))); })),
      Entry("squared-weights", "The weights are squared before they meet the values.", row, "softmax", {"softmax"},
            after("softmax", becomes("weights", [](const Array& a) { return a * a; }))),
      Entry("squared-weights", "The weights are squared and divided by their sum: twice the scale.",
            "What is the largest weight of a row, and what should it be?", "softmax", {"softmax"},
            after("softmax", becomes("weights", [](const Array& a) { return over_row_sum(a * a); }))),
      Entry("weights-are-scores", "What is returned as weights are the scores before the softmax.",
            "Add up a row of what you return.", "softmax", {"softmax"}, Edits{})
          .shown(Shows::kWeights),
      hard_maximum(false),
      hard_maximum(true),
      Entry("uniform-weights", "Every key gets the same weight, whatever the scores are.", "Change q. Does the output change?",
            "softmax", {"softmax"}, before("mask", [](Work& work) { work["scores"] = Array(work.at("scores").shape); })),
  };
}

}  // namespace qkv::judge
