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
      return !check.ok && (check.name == probe.text("name") ||
                              ((check.name == "called twice" || check.name == "float16") && probe.call("twice")) ||
                              (check.name == "gradients" && probe.call("gradient")) ||
                              (check.name == "returned weights" && probe.text("name") == "plain"));
    };
    if (std::ranges::any_of(finding.checks, shows)) found.push_back(n);
  }
  return found;
}

namespace {
/// Runs a textbook; after(stage, round, arrays before it, arrays behind it) follows each stage.
template <class After> void run_watched(Textbook textbook, const Probe& probe, After after) {
  for (Stage& stage : textbook) {
    stage.step = [&after, whole = stage](Work& work) {
      const Arrays before(work.arrays.begin(), work.arrays.end());
      run(whole, work);
      after(whole.name, static_cast<int>(work.at("round")[0].value), before,
          Arrays(work.arrays.begin(), work.arrays.end()));
    };
    stage.before.clear(), stage.after.clear();
  }
  run(textbook, probe);
}

/// Adds every array of the textbook's, after each stage that changed one.
void add_stages(StateDict& made, const Textbook& textbook, const Probe& probe, const std::string& mark) {
  Arrays added;
  int count = 0;
  run_watched(textbook, probe, [&](const std::string& stage, int round, const Arrays&, const Arrays& arrays) {
    const std::string prefix = mark + std::to_string(count++) + " " + std::to_string(round) + " " + stage + " ";
    for (const auto& [key, array] : arrays) {
      const auto old = added.find(key);
      const auto same = [](const Number& a, const Number& b) { return a.value == b.value; };
      if (old != added.end() && old->second.shape == array.shape &&
          std::ranges::equal(old->second.data, array.data, same))
        continue;
      added[key] = array;
      made.add(prefix + key, to_tensor(array));
    }
  });
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
  if (probe.text("without") == "output") convention("without-output-projection");
  for (const Convention& one : finding.conventions) convention(one.id);
  return textbook;
}
}  // namespace

StateDict stages(const Finding& finding, const StateDict& state) {
  const Probe probe = to_probe(state);
  Textbook textbook = textbook_of(finding, probe);
  StateDict made;
  if (finding.mistakes.size() == 1) made.metadata["mistake"] = finding.mistakes[0].id;
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
  const auto steps_of = [](const Answer& answer) {
    std::set<std::string> names;
    for (const StateDict::Entry& entry : answer.tensors.entries()) {
      if (is_step(entry.name)) names.insert(entry.name);
    }
    return names;
  };
  if (std::ranges::all_of(answers, &std::set<std::string>::empty, steps_of)) return;
  std::vector<std::size_t> watched = watched_probes(finding, probes);
  const auto bytes = [&](std::size_t n) {
    std::size_t all = 0;
    for (const StateDict::Entry& entry : probes[n].entries()) all += entry.tensor.bytes.size();
    return all;
  };
  std::ranges::stable_sort(watched, {}, bytes);  // numbers for a pencil first
  for (const std::size_t n : watched) {
    std::set<std::string> strangers = steps_of(answers[n]);
    if (strangers.empty()) continue;
    const Probe probe = to_probe(probes[n]);
    std::string right, wrong, known;
    const auto compare = [&](std::string stage, int round, const Arrays& before, const Arrays& arrays) {
      std::ranges::replace(stage, ' ', '_');
      for (const auto& [key, array] : arrays) {
        const std::string name = stage + "." + key + (round > 0 ? "." + std::to_string(round) : "");
        if (round == 0 && !before.contains(key)) known += " " + name;
        if (strangers.erase(name) == 0 || !wrong.empty()) continue;
        const Given given = to_given(answers[n].tensors.at(name));
        if (const auto at = difference(array, given))
          wrong = name + " is the first step that is not right\n" + row_text(name, array, given, *at);
        else
          right = name;
      }
    };
    run_watched(textbook_of(finding, probe), probe, compare);
    if (!wrong.empty())
      finding.where = (right.empty() ? "" : "right up to " + right + "; ") + wrong + "shown by the probe \"" +
                      probe.text("name") + "\"\n";
    if (!strangers.empty())
      finding.notes.push_back(*strangers.begin() + " is no step of " + finding.task + "; its steps begin with" + known);
    return;
  }
}

}  // namespace qkv::judge
