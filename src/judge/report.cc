#include "judge/report.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "core/escape.h"
#include "core/sentences.h"

namespace qkv::judge {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Lines of text, as they are added.
struct Report {
  const Finding& finding;
  const bool hint;
  const Style& style;
  std::string text = {};

  void line(const std::string& one = {}) { text += one + "\n"; }
  std::string wrapped(std::string_view words) const { return qkv::wrapped(said(words), 2, style.columns); }

  /// Every line of a text, made safe for a terminal, indented. `own`: the judge's own words.
  void block(std::string_view rest, bool own) {
    while (!rest.empty()) {
      const std::string_view one = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(one.size() + 1, rest.size()));
      const std::size_t start = std::min(one.find_first_not_of(' '), one.size());
      const std::string shown = one_line(one.substr(start));
      line("  " + std::string(start, ' ') + (own || shown.starts_with("Traceback") ? said(shown) : shown));
    }
  }

  void mistake(const Mistake& one) {
    line();
    if (hint) return line(wrapped(one.hint));
    if (finding.mistakes.size() > 1) line("  " + style.bold(one.id));
    line(wrapped(one.says));
    if (!one.same_as.empty()) line(wrapped("Indistinguishable from (same function): " + joined(one.same_as)));
    const Task* task = find_task(finding.task);
    const Formula formula = task == nullptr ? Formula{} : task->formula(one.term);
    if (!formula.whole.empty()) {
      // ") V" is about V
      const std::size_t begin = std::min(formula.part.find_first_not_of(") "), formula.part.size());
      line();
      line("  " + std::string(formula.whole));
      line("  " + style.bold(std::string(formula.whole.find(formula.part) + begin, ' ') +
                             std::string(formula.part.size() - begin, '^')));
    }
    if (!one.read.empty()) line(style.faint(said("  read: ")) + said(one.read));
  }

  /// Which comparisons were made; where nothing explains the code, which of them are not right.
  void checks() {
    if (!finding.right() && finding.verdict != "unknown") return;
    std::vector<std::string> made, wrong, skipped;
    for (const Check& check : finding.checks) (!check.asked ? skipped : check.ok ? made : wrong).push_back(check.name);
    const auto names = [this](std::string_view label, const std::vector<std::string>& list) {
      if (!list.empty()) line(style.faint(wrapped(std::string(label) + one_line(joined(list)))));
    };
    if (finding.right())
      return names(std::to_string(made.size()) + (made.size() == 1 ? " check: " : " checks: "), made),
             names("not asked: ", skipped);
    names("not right: ", wrong);
    names("right: ", made);
    for (const Check& check : finding.checks) {
      if (!check.ok && wrong.size() < 3 && !check.detail.empty()) line(style.faint(wrapped(one_line(check.detail))));
    }
  }

  void all() {
    line(style.bold(said(first_line(finding, hint))));
    std::string what = one_line(finding.file) + (finding.name.empty() ? "" : ":" + one_line(finding.name));
    if (!finding.task.empty()) what += ", judged as " + one_line(finding.task);
    line(style.faint(said("  " + what)));
    if (finding.right()) {
      for (const Convention& one : finding.conventions) line("\n" + wrapped(one.says));
    }
    for (const Mistake& one : finding.mistakes) mistake(one);
    if (!finding.where.empty()) line(), block(finding.where, true);
    if (!finding.evidence.empty()) line(), block(finding.evidence, true);
    if (finding.right()) line();
    checks();
    if (!finding.traceback.empty()) line(), block(finding.traceback, false);
    for (const std::string& note : finding.notes) line(style.faint(said("  note: ")) + said(one_line(note)));
    if (!finding.mistakes.empty())
      line(style.faint(said("  next: ")) + said("correct it and judge it again; `qkv practice " +
                                                one_line(finding.task) + " --solution` prints one that is right"));
  }
};

/// Lower is better. Outputs that are right show that the parameters are read as they are meant.
int rank(const Finding& finding) {
  constexpr std::array<std::string_view, 7> kOrder = {
      "right", "convention", "", "wrong", "unknown", "unfilled", "failed"};
  const auto order = static_cast<int>(std::ranges::find(kOrder, finding.verdict) - kOrder.begin());
  return finding.outputs_right ? std::min(order, 2) : order;
}

void add_convention(Finding& finding, const std::string& id) {
  if (std::ranges::find(finding.conventions, id, &Convention::id) != finding.conventions.end()) return;
  const Entry* entry = find_entry(id);
  finding.conventions.push_back({id, entry == nullptr ? id : std::string(entry->says)});
  if (finding.verdict == "right") finding.verdict = "convention";
}

/// The file says what its mask's True means: no other reading is right.
constexpr const char* kSaid = "the file says of its mask: True may attend";

/// What would be a convention is a mistake where the code's own words say otherwise, and a mistake that they announce
/// is a convention.
void keep_promises(Finding& finding, const std::vector<std::string>& promised) {
  const auto says = [&](const auto& one) { return std::ranges::find(promised, one.id) != promised.end(); };
  if (std::ranges::find(promised, "mask-true-shows") != promised.end() && finding.mistakes.size() == 1 &&
      finding.mistakes[0].id == "mask-polarity")
    finding.notes.emplace_back(kSaid);
  const auto is_of_pairs = [](const Convention& one) { return one.id.starts_with("rope-interleaved"); };
  const bool halves = finding.right() && std::ranges::none_of(finding.conventions, is_of_pairs);
  for (const std::string& id : promised) {
    if (halves && id == "rope-halves-unsaid" && applies(*find_entry(id), *find_task(finding.task)))
      add_convention(finding, id);
  }
  if (finding.mistakes.size() == 1 && says(finding.mistakes[0])) {
    finding.conventions.push_back({finding.mistakes[0].id, finding.mistakes[0].says});
    finding.notes.emplace_back("its docstring says so");
    finding.mistakes.clear(), finding.evidence.clear();
    finding.verdict = "convention";
    for (Check& one : finding.checks) one.ok = true;
    return;
  }
  if (finding.verdict != "convention") return;
  for (const Convention& one : finding.conventions) {
    if (!says(one)) continue;
    const Entry* entry = find_entry(one.id);
    finding.mistakes.push_back({one.id, {}, one.says, std::string(entry->hint), "", std::string(entry->term), ""});
    finding.verdict = "wrong";
    finding.notes.emplace_back("its docstring says otherwise");
  }
  std::erase_if(finding.conventions, says);
}

}  // namespace

std::string first_line(const Finding& finding, bool hint) {
  if (finding.verdict == "unknown")
    return "differs from the textbook of " + one_line(finding.task) +
           ": no mistake of the catalogue explains it, nor do three together";
  if (finding.verdict == "failed" || finding.verdict == "unfilled") {
    std::string_view says = finding.checks.empty() ? std::string_view() : finding.checks.back().detail;
    constexpr std::string_view kSame = "not filled in yet: ";
    if (says.starts_with(kSame)) says.remove_prefix(kSame.size());
    return finding.verdict + ": " + one_line(says);
  }
  std::string untried;
  if (finding.right() && !finding.untried.empty())
    untried = ", as far as asked: " + one_line(joined(finding.untried)) +
              (finding.untried.size() > 1 ? " were" : " was") + " never tried";
  if (finding.verdict == "convention") return "right, by another convention" + untried;
  if (finding.right()) return finding.verdict + untried;
  if (finding.verdict != "wrong" || finding.mistakes.empty()) return finding.verdict;
  if (finding.mistakes.size() > 1) return "wrong: " + std::to_string(finding.mistakes.size()) + " mistakes together";
  const std::string& id = finding.mistakes.front().id;
  if (hint) return "wrong";
  // What a mask's True means is said by its name, by the file, or by nothing: then it is right by the other reading.
  const bool said = std::ranges::find(finding.notes, kSaid) != finding.notes.end();
  if (id == "mask-polarity" && !said) {
    const bool hides =
        std::ranges::find(finding.conventions, "mask-true-hides", &Convention::id) != finding.conventions.end();
    const std::string hidden = "1 means hidden", visible = "1 means visible";
    return "right if " + (hides ? visible : hidden) + "; wrong if " + (hides ? hidden : visible) + ": " + id;
  }
  return "wrong: " + id;
}

Finding not_judged(
    const std::string& verdict, const std::string& says, const std::string& traceback, const std::string& check) {
  Finding finding;
  finding.verdict = verdict;
  const std::string name = verdict == "unfilled" ? "filled in" : "runs";
  finding.checks.push_back({check.empty() ? name : check, false, says});
  finding.traceback = traceback;
  return finding;
}

Finding judge_readings(const Subject& subject, const std::vector<StateDict>& probes,
    const std::function<std::vector<Answer>(std::size_t reading)>& answers) {
  Finding best;
  const std::size_t count = std::max<std::size_t>(subject.assignments.size(), 1);
  // Pairs of mistakes only once, for the first reading, where no reading is right or has one mistake.
  for (std::size_t turn = 0; turn < (count > 1 ? count + 1 : 1); ++turn) {
    const std::size_t n = turn % count;
    if (turn == count && rank(best) < 4) break;
    const std::vector<Answer> given = answers(n);
    Finding finding = judge(subject.task, probes, given, turn == count || count == 1);
    finding.untried = subject.untried;
    // A program of any language says itself what is not for it: a mask, a gradient; the rest is the task.
    const auto needed = [&](const Check& one) {
      const auto of =
          std::ranges::find_if(probes, [&](const StateDict& p) { return p.metadata.at("name") == one.name; });
      if (one.asked || of == probes.end() || of->contains("mask") || value_of(of->metadata, "causal") == "1")
        return false;
      const std::string call = value_of(of->metadata, "call");
      return call == "forward" || call == "steps" || call == "train-steps";
    };
    for (const Check& one : finding.checks) {
      if (subject.name.empty() && needed(one)) finding.untried.push_back(one.name);
    }
    if (!given.empty()) {
      // The last answer knows of all before it which branches none of them went through.
      std::istringstream unrun(value_of(given.back().tensors.metadata, "unrun"));
      for (std::string one; std::getline(unrun, one);) finding.untried.push_back(one);
    }
    const Subject::Assignment assignment = subject.assignments.empty() ? Subject::Assignment() : subject.assignments[n];
    std::vector<std::string> shown = subject.conventions;
    if (!assignment.convention.empty()) shown.push_back(assignment.convention);
    if (finding.verdict != "failed") {
      for (const std::string& id : shown) add_convention(finding, id);
    }
    if (count > 1 && !assignment.label.empty())
      finding.notes.push_back(
          "this rests on reading the parameters as " + assignment.label + "; --map NAME=YOURS says otherwise");
    finding.reading = n;
    if (turn == 0 || rank(finding) < rank(best)) {
      best = std::move(finding);
      compare_steps(best, probes, given);
    }
    if (rank(best) <= 2) break;
  }
  best.file = subject.file, best.name = subject.name, best.task = subject.task;
  keep_promises(best, subject.promised);
  best.begins = subject.line;
  const auto trains = [](const StateDict& probe) { return probe.metadata.at("call") == "training"; };
  if (subject.owner.dropout.value_or(0) > 0 && std::ranges::none_of(probes, trains))
    best.untried.emplace_back("train()");
  best.notes.insert(best.notes.end(), subject.notes.begin(), subject.notes.end());
  return best;
}

std::string report(const Finding& finding, bool hint, const Style& style) {
  Report made{finding, hint, style};
  made.all();
  return made.text;
}

}  // namespace qkv::judge
