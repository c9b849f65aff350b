// What code is watched against: probes that show a mistake, and the textbook's own intermediate values of them.
#include <algorithm>
#include <set>
#include <string>

#include "judge/evidence.h"
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

/// The textbook in the finding's conventions.
Textbook textbook_of(const Finding& finding, const Probe& probe) {
  const Task& task = *find_task(finding.task);
  Textbook textbook = task.textbook;
  const auto convention = [&](std::string_view id) {
    for (const Entry& entry : catalogue()) {  // tasks have their own of one name
      const bool own = entry.id == id && !entry.numbers && applies(entry, task) && fits(textbook, entry.edits(0));
      if (!own) continue;
      textbook = edited(std::move(textbook), entry.edits(0));
      return;
    }
  };
  if (probe.says("without", "output")) convention("without-output-projection");
  for (const Convention& one : finding.conventions) convention(one.id);
  return textbook;
}

std::string with_underscores(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}
}  // namespace

StateDict stages(const Finding& finding, const StateDict& state) {
  const Probe probe = to_probe(state);
  Textbook textbook = textbook_of(finding, probe);
  StateDict made;
  add_stages(made, textbook, probe, "");
  for (const Mistake& mistake : finding.mistakes) {
    if (fits(textbook, mistake.edits)) textbook = edited(std::move(textbook), mistake.edits);
  }
  try {
    if (!finding.mistakes.empty()) add_stages(made, textbook, probe, "-");
  } catch (const NotApplicable&) {  // nothing more is known
  }
  return made;
}

void compare_steps(Finding& finding, const std::vector<StateDict>& probes, const std::vector<Answer>& answers) {
  std::vector<std::size_t> watched = watched_probes(finding, probes);
  const auto bytes = [&](std::size_t n) {
    std::size_t all = 0;
    for (const StateDict::Entry& entry : probes[n].entries()) all += entry.tensor.bytes.size();
    return all;
  };
  std::ranges::stable_sort(watched, {}, bytes);  // numbers for a pencil first
  for (const std::size_t n : watched) {
    const Probe probe = to_probe(probes[n]);
    std::set<std::string> strangers;
    for (const StateDict::Entry& entry : answers[n].tensors.entries()) {
      if (is_step(entry.name)) strangers.insert(entry.name);
    }
    if (strangers.empty()) continue;
    std::string right, wrong, known;
    Textbook textbook = textbook_of(finding, probe);
    for (Stage& stage : textbook) {
      stage.step = [&, whole = stage, own = with_underscores(stage.name)](Work& work) {
        const Arrays before(work.arrays.begin(), work.arrays.end());
        run(whole, work);
        const Index round = static_cast<Index>(work.at("round")[0].value);
        for (const auto& [key, array] : Arrays(work.arrays.begin(), work.arrays.end())) {
          const std::string name = own + "." + key + (round > 0 ? "." + std::to_string(round) : "");
          if (round == 0 && !before.contains(key)) known += " " + name;
          if (strangers.erase(name) == 0 || !wrong.empty()) continue;
          const Given given = to_given(answers[n].tensors.at(name));
          if (const auto at = difference(array, given))
            wrong = name + " is the first step that is not right\n" + row_text(name, array, given, *at);
          else
            right = name;
        }
      };
      stage.before.clear(), stage.after.clear();
    }
    run(textbook, probe);
    if (!wrong.empty())
      finding.where = (right.empty() ? "" : "right up to " + right + "; ") + wrong + "shown by the probe \"" +
                      probe.text("name") + "\"\n";
    if (!strangers.empty())
      finding.notes.push_back(*strangers.begin() + " is no step of " + finding.task + "; its steps begin with" + known);
    return;
  }
}

}  // namespace qkv::judge
