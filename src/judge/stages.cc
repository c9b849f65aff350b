// What code is watched against: probes that show a mistake, and the textbook's own intermediate values of them.
#include <algorithm>
#include <string>

#include "judge/report.h"

namespace qkv::judge {

std::vector<std::size_t> watched_probes(const Finding& finding, const std::vector<StateDict>& probes) {
  std::vector<std::size_t> found;
  if (finding.verdict != "wrong" && finding.verdict != "unknown") return found;
  for (std::size_t n = 0; n < probes.size(); ++n) {
    const Probe probe = to_probe(probes[n]);
    const auto shows = [&](const Check& check) {
      return !check.ok && (check.name == probe.text("name") || (check.name == "called twice" && probe.call("twice")) ||
                              (check.name == "gradients" && probe.call("gradient")) ||
                              (check.name == "returned weights" && probe.text("name") == "plain"));
    };
    if (std::ranges::any_of(finding.checks, shows)) found.push_back(n);
  }
  return found;
}

namespace {
/// Adds every array of the textbook's, after each stage that changed one.
void add_stages(StateDict& made, Textbook textbook, const Probe& probe, const std::string& mark) {
  Arrays before;
  int count = 0;
  for (Stage& stage : textbook) {
    stage.step = [&before, &made, &count, &mark, whole = stage, own = stage.name](Work& work) {
      run(whole, work);
      const std::string prefix = mark + std::to_string(count++) + " " +
                                 std::to_string(static_cast<int>(work.at("round")[0].value)) + " " + own + " ";
      for (const auto& [key, array] : Arrays(work.arrays.begin(), work.arrays.end())) {
        const auto old = before.find(key);
        const auto same = [](const Number& a, const Number& b) { return a.value == b.value; };
        if (old != before.end() && old->second.shape == array.shape &&
            std::ranges::equal(old->second.data, array.data, same))
          continue;
        before[key] = array;
        made.add(prefix + key, to_tensor(array));
      }
    };
    stage.before.clear(), stage.after.clear();
  }
  run(textbook, probe);
}
}  // namespace

StateDict stages(const Finding& finding, const StateDict& state) {
  const Task& task = *find_task(finding.task);
  const Probe probe = to_probe(state);
  Textbook textbook = task.textbook;
  const auto edit = [&](const Edits& edits) { textbook = edited(std::move(textbook), edits); };
  const auto convention = [&](std::string_view id) {
    for (const Entry& entry : catalogue()) {  // tasks have their own of one name
      const bool own = entry.id == id && !entry.numbers && applies(entry, task) && fits(textbook, entry.edits(0));
      if (own) return edit(entry.edits(0));
    }
  };
  if (probe.says("without", "output")) convention("without-output-projection");
  for (const Convention& one : finding.conventions) convention(one.id);
  StateDict made;
  add_stages(made, textbook, probe, "");
  for (const Mistake& mistake : finding.mistakes) {
    if (fits(textbook, mistake.edits)) edit(mistake.edits);
  }
  try {
    if (!finding.mistakes.empty()) add_stages(made, textbook, probe, "-");
  } catch (const NotApplicable&) {  // nothing more is known
  }
  return made;
}

}  // namespace qkv::judge
