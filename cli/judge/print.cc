#include "judge/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "support/claim.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

using judge::Finding;
using judge::Mistake;

/// Every line of a text, made safe for a terminal, indented.
void print_block(const std::string& text, const std::string& indent = "  ") {
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t start = std::min(line.find_first_not_of(' '), line.size());
    print_line(indent + std::string(start, ' ') + one_line(line.substr(start)));
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// "wrong: no-scale"; what it means follows, in lines that fit.
std::string headline(const Finding& finding, bool hint) {
  if (finding.verdict == "unknown")
    return "differs from the textbook of " + one_line(finding.task) +
           ": no mistake of the catalogue explains it, nor do two together";
  if (finding.verdict == "failed" || finding.verdict == "unfilled") {
    const std::string says = finding.checks.empty() ? std::string() : finding.checks.back().detail;
    return (finding.verdict == "failed" ? "failed: " : "unfilled: ") + one_line(says);
  }
  std::string untried;
  if (finding.right() && !finding.untried.empty())
    untried = ", as far as asked: " + one_line(joined(finding.untried)) + (finding.untried.size() > 1 ? " were" : " was") +
              " never given";
  if (finding.verdict == "convention") return "right, by another convention" + untried;
  if (finding.right()) return finding.verdict + untried;
  if (finding.verdict != "wrong" || finding.mistakes.empty()) return finding.verdict;
  if (finding.mistakes.size() > 1) return fmt::format("wrong: {} mistakes together", finding.mistakes.size());
  return hint ? "wrong" : "wrong: " + finding.mistakes.front().id;
}

void print_mistake(const Finding& finding, const Mistake& mistake, bool hint) {
  print_line();
  if (hint) return print_line(wrapped(mistake.hint, 2));
  if (finding.mistakes.size() > 1) print_line("  " + bold(mistake.id));
  print_line(wrapped(mistake.says, 2));
  if (!mistake.same_as.empty()) print_line(wrapped("Indistinguishable from (same function): " + joined(mistake.same_as), 2));
  const judge::Task* task = judge::find_task(finding.task);
  const judge::Formula formula = task == nullptr ? judge::Formula{} : task->formula(mistake.term);
  if (!formula.whole.empty()) {
    const std::size_t begin = std::min(formula.part.find_first_not_of(") "), formula.part.size());  // ") V" is about V
    print_line();
    print_line("  " + std::string(formula.whole));
    print_line("  " + bold(std::string(formula.whole.find(formula.part) + begin, ' ') +
                           std::string(formula.part.size() - begin, '^')));
  }
  if (!mistake.read.empty()) print_line(faint("  read: ") + mistake.read);
}

/// What was compared where all is right, what differs where nothing explains it.
void print_checks(const Finding& finding) {
  if (finding.right()) {
    std::vector<std::string> names, skipped;
    for (const judge::Check& check : finding.checks) (check.asked ? names : skipped).push_back(check.name);
    if (!names.empty()) print_line(faint(wrapped(fmt::format("{} checks: {}", names.size(), one_line(joined(names))), 2)));
    if (!skipped.empty()) print_line(faint(wrapped("not asked: " + one_line(joined(skipped)), 2)));
  } else if (finding.verdict == "unknown") {
    for (const judge::Check& check : finding.checks) {
      if (!check.ok)
        print_line(faint("  not right: ") + one_line(check.name + (check.detail.empty() ? "" : ": " + check.detail)));
    }
  }
}

}  // namespace

Json to_json(const Finding& finding) {
  Json mistakes = Json::array(), conventions = Json::array(), checks = Json::array();
  for (const Mistake& mistake : finding.mistakes) {
    mistakes.push_back({{"id", mistake.id},
                        {"same_as", mistake.same_as},
                        {"says", mistake.says},
                        {"hint", mistake.hint},
                        {"evidence", mistake.evidence},
                        {"term", mistake.term},
                        {"read", mistake.read}});
  }
  for (const judge::Convention& one : finding.conventions) conventions.push_back({{"id", one.id}, {"says", one.says}});
  for (const judge::Check& one : finding.checks) checks.push_back({{"name", one.name}, {"ok", one.ok}, {"detail", one.detail}});
  return {{"file", finding.file},
          {"name", finding.name},
          {"task", finding.task},
          {"verdict", finding.verdict},
          {"mistakes", mistakes},
          {"conventions", conventions},
          {"checks", checks},
          {"untried", finding.untried},
          {"notes", finding.notes},
          {"evidence", finding.evidence},
          {"traceback", finding.traceback},
          {"seconds", finding.seconds}};
}

void print_finding(const Finding& finding, bool hint) {
  print_line(bold(headline(finding, hint)));
  std::string what = one_line(finding.file) + (finding.name.empty() ? "" : ":" + one_line(finding.name));
  if (!finding.task.empty()) what += ", judged as " + one_line(finding.task);
  print_line(faint("  " + what));
  if (finding.right()) {
    for (const judge::Convention& one : finding.conventions) print_line("\n" + wrapped(one.says, 2));
  }
  for (const Mistake& mistake : finding.mistakes) print_mistake(finding, mistake, hint);
  if (!finding.evidence.empty()) {
    print_line();
    print_block(finding.evidence);
  }
  if (finding.right()) {
    print_line();
  }
  print_checks(finding);
  if (!finding.traceback.empty()) {
    print_line();
    print_block(finding.traceback);
  }
  for (const std::string& note : finding.notes) print_line(faint("  note: ") + one_line(note));
  if (!finding.mistakes.empty())
    print_line(faint("  next: ") + "correct it and judge it again; `qkv practice " + one_line(finding.task) +
               " --solution` prints one that is right");
}

}  // namespace qkv::cli
