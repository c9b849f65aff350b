// All entries in one list.
#include <algorithm>
#include <iterator>

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

}  // namespace qkv::judge
