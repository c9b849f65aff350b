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
  return {.id = id, .says = says, .hint = hint, .term = "output", .parts = {part}, .edits = always(std::move(edit))};
}

}  // namespace

std::vector<Entry> value_entries() {
  return {
      {.id = "values-from-keys",
       .says = "The weights mix the keys; they mix the values.",
       .hint = "Change v alone. Does the output change?",
       .term = "values",
       .parts = {"values"},
       .edits = always(mixed("k"))},
      {.id = "queries-as-values",
       .says = "The weights mix the queries; they mix the values.",
       .hint = "Change v alone. Does the output change?",
       .term = "values",
       .parts = {"values"},
       .edits = always(mixed("q"))},
      {.id = "weights-transposed",
       .says =
           "The weights are transposed before they meet the values: key j gives to query i what query j should get from key i.",
       .hint = "Which axis of the weights is summed over?",
       .term = "values",
       .parts = {"values"},
       .edits = always(before("mix",
                              [](Work& work) {
                                need(work.at("weights").size(-1) == work.at("weights").size(-2));
                                work["weights"] = transpose(work.at("weights"));
                              }))},
      {.id = "normalised-by-length",
       .says = "The output is divided by the number of keys; the weights sum to 1 already.",
       .hint = "If all values are 1, what is the output?",
       .term = "values",
       .parts = {"values"},
       .edits = always(after("mix",
                             [](Work& work) {
                               work["values"] =
                                   work.at("values") * Number(1 / static_cast<double>(work.at("weights").size(-1)));
                             }))},
      {.id = "value-added",
       .says = "Each token's own value is added to what it attends to.",
       .hint = "If all values are 1, what is the output?",
       .term = "values",
       .parts = {"values"},
       .edits = always(after("mix",
                             [](Work& work) {
                               need(work.at("values").shape == work.at("v").shape);
                               work["values"] = work.at("values") + work.at("v");
                             }))},
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
             before("output",
                    [](Work& work) {
                      need(work.at("W_o").size(0) == work.at("W_o").size(1));
                      work["W_o"] = transpose(work.at("W_o"));
                    })),
      output("output-uses-v-weights", "The output is made by the value projection; the output projection is never used.",
             "Which parameters get no gradient?",
             before("output",
                    [](Work& work) {
                      need(work.at("W_v").shape == work.at("W_o").shape);
                      work["W_o"] = work.at("W_v");
                      work["b_o"] = work.at("b_v");
                    })),
      output("output-uses-q-weights", "The output is made by the query projection; the output projection is never used.",
             "Which parameters get no gradient?",
             before("output",
                    [](Work& work) {
                      need(work.at("W_q").shape == work.at("W_o").shape);
                      work["W_o"] = work.at("W_q");
                      work["b_o"] = work.at("b_q");
                    })),
      output("residual-added", "The input is added to the output; the residual connection is not part of attention itself.",
             "If all values are 0, what is the output?",
             after("output",
                   [](Work& work) {
                     need(work.at("x").shape == work.at("out").shape);
                     work["out"] = work.at("out") + work.at("x");
                   }),
             "layer"),
      output("residual-before-output",
             "The input is added before the output projection; the residual connection is not part of attention itself.",
             "If all values are 0, what is the output?",
             before("output",
                    [](Work& work) {
                      need(work.at("x").shape == work.at("merged").shape);
                      work["merged"] = work.at("merged") + work.at("x");
                    })),
      // Classes that have no W_o at all.
      {.id = "without-output-projection",
       .says = "There is no output projection W_o.",
       .hint = "",
       .term = "output",
       .parts = {"output"},
       .edits = always(instead("output", [](Work& work) { work["out"] = work.at("merged"); })),
       .convention = true,
       .given = true,
       .group = "output"},
  };
}

}  // namespace qkv::judge
