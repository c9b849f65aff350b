// All entries in one list, and where one reads about a term.
#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "judge/entry.h"

namespace qkv::judge {

const std::vector<Entry>& catalogue() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> out;
    for (std::vector<Entry> (*entries)() :
         {projection_entries, head_entries, score_entries, mask_entries, softmax_entries, value_entries, gradient_entries,
          cache_entries, rope_entries, flash_entries, linear_entries, backward_entries, dropout_entries, lm_entries}) {
      std::ranges::move(entries(), std::back_inserter(out));
    }
    std::ranges::stable_partition(out, &Entry::convention);
    return out;
  }();
  return all;
}

const Entry* find_entry(std::string_view id) {
  const auto found = std::ranges::find(catalogue(), id, &Entry::id);
  return found == catalogue().end() ? nullptr : &*found;
}

bool applies(const Entry& entry, const Task& task) {
  return std::ranges::any_of(entry.parts, [&](std::string_view part) { return task.has(part); });
}

std::string_view where_to_read(std::string_view term) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kPages = {{
      {"projection", "docs/layers.md; qkv explain, steps 1 and 2"},
      {"heads", "docs/layers.md; qkv explain, steps 3, 4 and 9"},
      {"scores", "docs/concepts/semantics.md; qkv explain, step 5"},
      {"scale", "docs/concepts/semantics.md; qkv explain, step 6; qkv ablate"},
      {"mask", "docs/concepts/masks.md; qkv mask causal --draw"},
      {"softmax", "docs/concepts/semantics.md; qkv explain, step 7"},
      {"values", "docs/concepts/semantics.md; qkv explain, step 8"},
      {"output", "docs/layers.md; qkv explain, step 9"},
      {"gradient", "qkv explain --backward"},
      {"dropout", "docs/concepts/score-modifiers.md"},
      {"state", "docs/concepts/kv-cache.md"},
      {"positions", "docs/concepts/positions.md"},
      {"blocks", "docs/dev/kernels.md"},
      {"training", "docs/practice.md; qkv train"},
  }};
  const auto found = std::ranges::find(kPages, term, &std::pair<std::string_view, std::string_view>::first);
  return found == kPages.end() ? "docs/practice.md" : found->second;
}

}  // namespace qkv::judge
