// What the weights mix, and the output projection.
#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

Edit mixed(const char* what) {
  return instead("mix", [what](Work& work) {
    need(work.at(what).size(2) == work.at("weights").size(-1));
    work["values"] = matmul(work.at("weights"), work.at(what));
  });
}

Entry output(std::string_view id, std::string_view says, std::string_view hint, Edit edit, std::string_view part = "output") {
  return Entry(id, says, hint, "output", {part}, std::move(edit));
}

}  // namespace

std::vector<Entry> value_entries() {
  return {
      Entry("values-from-keys", "The weights mix the keys; they mix the values.", "Change v alone. Does the output change?",
            "values", {"values"}, mixed("k")),
      Entry("queries-as-values", "The weights mix the queries; they mix the values.", "Change v alone. Does the output change?",
            "values", {"values"}, mixed("q")),
      Entry(
          "weights-transposed",
          "The weights are transposed before they meet the values: key j gives to query i what query j should get from key i.",
          "Which axis of the weights is summed over?", "values", {"values"},
          before("mix", becomes("weights", transposed_square))),
      Entry("normalised-by-length", "The output is divided by the number of keys; the weights sum to 1 already.",
            "If all values are 1, what is the output?", "values", {"values"},
            after("mix",
                  [](Work& work) {
                    work["values"] = work.at("values") * Number(1 / static_cast<double>(work.at("weights").size(-1)));
                  })),
      Entry("value-added", "Each token's own value is added to what it attends to.", "If all values are 1, what is the output?",
            "values", {"values"}, after("mix", adds("values", "v"))),
      output("no-output-projection", "The output projection is not applied: the merged heads are returned as they are.",
             "Which parameters get no gradient?", instead("output", [](Work& work) { work["out"] = work.at("merged"); })),
      output("no-output-bias", "The bias of the output projection is not added.", "What is the output if all weights W are 0?",
             before("output",
                    [](Work& work) {
                      need(!work.at("b_o").data.empty());
                      work["b_o"] = Array();
                    })),
      output("output-bias-twice", "The bias of the output projection is added twice.",
             "What is the output if all weights W are 0?",
             after("output",
                   [](Work& work) {
                     need(!work.at("b_o").data.empty());
                     work["out"] = work.at("out") + work.at("b_o");
                   })),
      output("output-transposed-weight",
             "The output matrix is applied the wrong way round (W_o where W_o^T is meant, or the reverse).",
             "nn.Linear keeps its weight as [out, in]. A square matrix hides the difference; try one that is not.",
             before("output", becomes("W_o", transposed_square))),
      output("output-uses-v-weights", "The output is made by the value projection; the output projection is never used.",
             "Which parameters get no gradient?", before("output", both(takes("W_o", "W_v"), takes("b_o", "b_v")))),
      output("output-uses-q-weights", "The output is made by the query projection; the output projection is never used.",
             "Which parameters get no gradient?", before("output", both(takes("W_o", "W_q"), takes("b_o", "b_q")))),
      output("residual-added", "The input is added to the output; the residual connection is not part of attention itself.",
             "If all values are 0, what is the output?", after("output", adds("out", "x")), "layer"),
      output("residual-before-output",
             "The input is added before the output projection; the residual connection is not part of attention itself.",
             "If all values are 0, what is the output?", before("output", adds("merged", "x"))),
      // Classes that have no W_o at all.
      Entry("without-output-projection", "There is no output projection W_o.", "", "output", {"output"},
            instead("output", [](Work& work) { work["out"] = work.at("merged"); }))
          .given_of("output"),
  };
}

}  // namespace qkv::judge
