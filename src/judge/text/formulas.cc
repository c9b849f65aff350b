// Reads text/formulas.txt, and says which of its rows a task has for a term.
#include <algorithm>

#include "judge/task.h"
#include "judge/text/language.h"

namespace qkv::judge {
namespace {

struct Row {
  std::string_view term, part;  ///< part of tasks; empty: any task
  Formula formula;
};

std::vector<Row> read_formulas() {
  std::vector<Row> rows;
  std::string_view whole;
  for (std::string_view line : text_lines("formulas.txt")) {
    if (line.starts_with('[')) {
      whole = line.substr(1, line.size() - 2);
      continue;
    }
    const std::vector<std::string_view> head = words_of(cut(line, "|"));
    const std::string_view part = cut(line, "|"), own = head.size() > 1 ? head.back() : std::string_view();
    rows.push_back({head.front(), own, {whole, part == "*" ? whole : part, trimmed(line)}});
  }
  return rows;
}

}  // namespace

Formula Task::formula(std::string_view term) const {
  static const std::vector<Row> rows = read_formulas();
  const auto row = std::ranges::find_if(
      rows, [&](const Row& one) { return one.term == term && (one.part.empty() || has(one.part)); });
  Formula found = row == rows.end() ? Formula{"", "", "docs/practice.md#how-to-read-a-finding"} : row->formula;
  constexpr std::string_view kOutput = " W_o";
  const bool shows_output = std::ranges::find(answers, std::string_view("dW_o")) != answers.end() || has("output");
  if (!shows_output && found.part != "W_o" && found.whole.ends_with(kOutput)) found.whole.remove_suffix(kOutput.size());
  return found;
}

}  // namespace qkv::judge
