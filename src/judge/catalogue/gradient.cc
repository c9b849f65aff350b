// What the output does not show: gradients that are cut.
#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

/// The array keeps the value that it had before a parameter was moved; `stage` is the last that writes it.
Entry detached(std::string_view id, std::string_view says, std::string_view stage, std::vector<std::string> names,
               std::string_view part) {
  return Entry(id, says, "Look for detach, .data, no_grad, item, numpy: what comes out of them has no history.", "gradient",
               {part},
               after(stage,
                     [names = std::move(names)](Work& work) {
                       if (work.frozen == nullptr) return;
                       for (const std::string& name : names) work[name] = work.frozen->at(name);
                     }))
      .shown(Shows::kGradient);
}

}  // namespace

std::vector<Entry> gradient_entries() {
  return {
      detached("weights-detached", "No gradient passes through the weights: only v learns.", "empty", {"weights"}, "softmax"),
      detached("scores-detached", "No gradient passes through the scores: only v learns.", "mask", {"scores"}, "scores"),
      detached("queries-detached", "No gradient reaches the query projection.", "group", {"q"}, "projection"),
      detached("keys-detached", "No gradient reaches the key projection.", "group", {"k"}, "projection"),
      detached("values-detached", "No gradient reaches the value projection.", "group", {"v"}, "projection"),
      detached("keys-values-detached", "No gradient reaches the key and value projections.", "group", {"k", "v"}, "projection"),
      detached("input-detached", "No gradient reaches the input x.", "parameters", {"x", "memory"}, "layer"),
      detached("heads-detached", "No gradient passes from the output projection to the heads.", "mix", {"values"}, "output"),
      detached("queries-detached", "No gradient reaches q.", "given", {"q"}, "function"),
      detached("keys-detached", "No gradient reaches k.", "given", {"k"}, "function"),
      detached("values-detached", "No gradient reaches v.", "given", {"v"}, "function"),
  };
}

}  // namespace qkv::judge
