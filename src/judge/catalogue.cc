// Reads the entries of text/*.txt.
#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

#include "judge/entry.h"

namespace qkv::judge {
namespace {

using Hints = std::map<std::string_view, std::string_view>;  ///< by name

/// An entry as it is written; its edits have `~` in them.
struct Draft {
  struct Line {
    Where where;
    std::string_view stage;
    std::vector<std::string> steps;
  };
  Entry entry;
  std::string_view twin, some;
  bool second_alone = true;
  std::vector<Line> lines;
};

constexpr std::pair<std::string_view, Where> kWhere[] = {
    {"before ", Where::kBefore}, {"instead ", Where::kInstead}, {"after ", Where::kAfter}};
constexpr std::pair<std::string_view, Shows> kShows[] = {{"forward", Shows::kForward}, {"gradient", Shows::kGradient},
    {"training", Shows::kTraining}, {"twice", Shows::kTwice}, {"weights", Shows::kWeights}};

/// "in heads function": false where it is no property.
bool set(Draft& draft, std::string_view property, const Hints& hints) {
  Entry& entry = draft.entry;
  const std::size_t blank = std::min(property.find(' '), property.size());
  const std::string_view name = property.substr(0, blank), value = trimmed(property.substr(blank));
  if (name == "in") {
    entry.parts = words_of(value);
  } else if (name == "hint") {
    entry.hint = hints.at(value);
  } else if (name == "term") {
    entry.term = value;
  } else if (name == "group") {
    entry.group = value == "-" ? std::string_view() : value;
  } else if (name == "convention" || name == "given") {
    entry.convention = true, entry.given = name == "given";
  } else if (name == "some") {
    draft.some = value;
  } else if (name == "twin") {
    draft.twin = value;
  } else if (property == "not second alone") {
    draft.second_alone = false;
  } else if (property == "rare") {
    entry.rare = true;
  } else if (property == "says empty rows") {
    entry.fixes_empty_rows = true;
  } else if (name == "shows") {
    entry.shows = std::ranges::find(kShows, value, &std::pair<std::string_view, Shows>::first)->second;
  } else if (name == "tried" || name == "fitted") {
    entry.fitted = name == "fitted";
    entry.numbers = [list = parse_expression(value)](const Probe& probe) {
      Work work(probe);
      const Value found = list({work});
      std::vector<double> numbers;
      for (const Number& x : found->data) numbers.push_back(x.value);
      return numbers;
    };
  } else {
    return false;
  }
  return true;
}

/// "in heads; group split": false where the line is something else.
bool set_all(Draft& draft, std::string_view line, const Hints& hints) {
  while (!line.empty()) {
    if (!set(draft, cut(line, ";"), hints)) return false;
  }
  return true;
}

/// The draft's lines of the first part (`first`), of its twin (`second`) or of both.
Entry entry_of(const Draft& draft, bool first, bool second) {
  Entry entry = draft.entry;
  for (const bool twin : {false, true}) {
    if (!(twin ? second : first)) continue;
    for (const Draft::Line& line : draft.lines) {
      const bool both = line.stage.starts_with('~'), own = !draft.twin.empty() && line.stage.starts_with(draft.twin);
      if (!both && own != twin) continue;
      const std::string_view prefix = twin ? draft.twin : std::string_view();
      Entry::Line& to = entry.lines.emplace_back(Entry::Line{line.where, replaced(line.stage, "~", prefix), {}});
      for (const std::string& step : line.steps) to.steps.push_back(parse_step(replaced(step, "~", prefix)));
    }
  }
  if (entry.fixes_empty_rows) entry.lines.push_back({Where::kInstead, "empty", {}});
  return entry;
}

/// Of "q k v" with `parts` 5: "q v".
std::string chosen(std::string_view list, unsigned parts, std::string_view between, std::string_view last) {
  std::vector<std::string_view> words;
  for (const std::string_view word : words_of(list)) {
    if (parts & 1U) words.push_back(word);
    parts >>= 1U;
  }
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 < words.size() ? between : last;
    out += words[i];
  }
  return out;
}

void add(std::vector<Entry>& out, const Draft& draft) {
  for (unsigned parts = (1U << words_of(draft.some).size()) - 1; parts > 0; --parts) {
    Draft some = draft;
    some.entry.says = replaced(draft.entry.says, "{of}", chosen(draft.some, parts, ", ", " and "));
    for (Draft::Line& line : some.lines) {
      for (std::string& step : line.steps)
        step = replaced(step, "each some:", "each " + chosen(draft.some, parts, " ", " ") + ":");
    }
    some.some = {}, some.entry.some = true;
    out.push_back(entry_of(some, true, true));
  }
  if (!draft.some.empty()) return;
  out.push_back(entry_of(draft, true, true));
  const std::size_t all = out.back().lines.size();
  for (const bool second : {false, true}) {
    if (draft.twin.empty() || draft.entry.convention || (second && !draft.second_alone)) continue;
    Entry some = entry_of(draft, !second, second);
    if (!some.lines.empty() && some.lines.size() < all) out.push_back(std::move(some));
  }
}

void read(std::string_view file, std::vector<Entry>& out, Hints& hints) {
  Draft shared, draft;
  bool any = false;
  const auto end = [&] {
    if (any) add(out, draft);
    any = false;
  };
  for (std::string_view line : text_lines(file)) {
    if (const auto [name, text] = cut_hint(line); !text.empty()) hints[name] = text;
    const bool another = line.starts_with("or ");
    if (another) {
      add(out, draft);
      draft.lines = shared.lines;
      line.remove_prefix(3);
    }
    const std::size_t bar = line.find('|');
    const auto where = std::ranges::find_if(
        kWhere, [&](const auto& one) { return bar != std::string_view::npos && line.starts_with(one.first); });
    if (line.starts_with('[')) {
      end();
      draft = shared;
      line.remove_prefix(1);
      draft.entry.id = cut(line, "]"), draft.entry.says = trimmed(line);
      any = true;
    } else if (line.starts_with("* ")) {
      end();
      shared = {};
      line.remove_prefix(2);
      shared.entry.term = cut(line, ";");
      if (!set_all(shared, line, hints)) throw std::logic_error("[judge] " + std::string(line));
    } else if (line.starts_with("? ")) {
      draft.entry.hint = line.substr(2);
    } else if (where != std::end(kWhere)) {
      const std::string_view stage = trimmed(line.substr(where->first.size(), bar - where->first.size()));
      (any ? draft : shared).lines.push_back({where->second, stage, {std::string(line.substr(bar + 1))}});
    } else if (another) {
      draft.entry.says = line;
    } else if (line.starts_with(' ')) {
      draft.lines.back().steps.emplace_back(line.substr(bar + 1));
    } else if (!definitions().define(line) && !set_all(draft, line, hints)) {
      throw std::logic_error("[judge] " + std::string(file) + ": " + std::string(line));
    }
  }
  end();
}

}  // namespace

std::pair<std::string_view, std::string_view> cut_hint(std::string_view& line) {
  const std::size_t hint = line.starts_with("hint ") ? 0 : line.find("; hint ") + 2, colon = line.find(':', hint);
  if (!line.substr(hint).starts_with("hint ") || colon == std::string_view::npos) return {};
  const std::string_view text = trimmed(line.substr(colon + 1));
  line = line.substr(0, colon);
  return {line.substr(hint + 5), text};
}

Edits Entry::edits(double number) const {
  Edits edits;
  for (const Line& line : lines) {
    edits.push_back({line.where, line.stage, [&steps = line.steps, number](Work& work) {
                       for (const Statements& step : steps) step(work, number);
                     }});
  }
  return edits;
}

const std::vector<Entry>& catalogue() {
  static const std::vector<Entry> all = [] {
    textbook_called("function");  // texts of mistakes use its definitions
    std::vector<Entry> out;
    Hints hints;
    for (const char* file : kMistakes) read(file, out, hints);
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
