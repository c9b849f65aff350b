// Within a task no two entries of the catalogue are one function on all probes, apart from those that the table below
// declares.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "judge/search/match.h"
#include "judge/search/search.h"

namespace qkv::judge {
namespace {

/// Ids of which two are the same function in a task, in alphabetical order.
const std::set<std::pair<std::string, std::string>> kSame = {
    {"scale-1-over-d", "scale-twice"}, {"fill-small", "fill-zero"}, {"fill-small", "mask-multiplies-scores"},
    {"fill-zero", "mask-multiplies-scores"}, {"v-uses-k-weights", "values-from-keys"},  // no biases
    {"linear-causal-ignored", "no-causal"},
    {"rope-direction-reversed", "rope-sine-cosine-exchanged"},  // in attention: both turn by a constant minus the angle
    {"", "flash-delta-of-weights"}, {"", "flash-lse-again"},    // but for rounding out and lse
    {"flash-delta-of-weights", "flash-lse-again"},              // likewise
};

/// The results of an entry on every probe; nothing where the shapes do not allow it.
using Results = std::vector<std::optional<std::vector<Array>>>;

Results results_of(const Task& task, const std::vector<Probe>& probes, const Choices& choices) {
  const Range range(std::numeric_limits<float>::max());
  Results results;
  for (const Probe& probe : probes) {
    const std::optional<Work> work = run_with(task, choices, probe);
    if (!work) {
      results.emplace_back();
      continue;
    }
    std::vector<Array> arrays;
    for (const std::string_view answer : task.answers) arrays.push_back(work->at(answer));
    results.emplace_back(std::move(arrays));
  }
  return results;
}

/// Within what rounding in float32 explains.
bool same(const Array& a, const Array& b) {
  if (a.shape != b.shape) return false;
  for (Index i = 0; i < a.count(); ++i) {
    if (!agrees(Number(a[i].value, a[i].error + b[i].error), b[i].value, 0x1p-24)) return false;
  }
  return true;
}

bool same(const Results& a, const Results& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].has_value() != b[i].has_value()) return false;
    for (std::size_t j = 0; a[i] && j < a[i]->size(); ++j) {
      if (!same((*a[i])[j], (*b[i])[j])) return false;
    }
  }
  return true;
}

class Apart : public testing::TestWithParam<const char*> {};

TEST_P(Apart, EveryEntryIsAFunctionOfItsOwn) {
  const Task& task = *find_task(GetParam());
  const std::vector<Probe> probes = task.probes(task.sizes, 0);
  std::vector<std::pair<std::string, Results>> all = {{"", results_of(task, probes, {})}};
  for (const bool convention : {true, false}) {
    for (const Entry* entry : entries_of(task, convention)) {
      if (entry->numbers || entry->given || !textbook_with(task, {{entry, 0}})) continue;
      Results results = results_of(task, probes, {{entry, 0}});
      // An entry of shapes that this task has not; what a row gives that sees nothing, where every row sees itself.
      if (std::ranges::none_of(results, &Results::value_type::has_value) || entry->group == "empty row") continue;
      const std::string id(entry->id);
      for (const auto& [other, given] : all) {
        if (id == other || kSame.contains(std::minmax(id, other))) continue;
        EXPECT_FALSE(same(results, given)) << task.name << ": " << id << " is " << (other.empty() ? "right" : other);
      }
      all.emplace_back(id, std::move(results));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, Apart,
    testing::Values("cache", "rope", "flash", "linear", "backward", "dropout", "lm", "one-row", "softmax",
        "cross-entropy", "layernorm", "rmsnorm", "merge", "swiglu", "sampling", "beam", "score-modifiers", "paged",
        "router", "lora", "mla", "flash-backward"),
    [](const auto& one) { return replaced(one.param, "-", "_"); });

}  // namespace
}  // namespace qkv::judge
