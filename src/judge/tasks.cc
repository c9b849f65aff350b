// The ladder, read from tasks.txt, and whether a probe is one of a task.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "judge/judge.h"
#include "judge/task.h"
#include "judge/text/language.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

/// "x [B L E], mask? [B 1 L L], ids [B L] < V".
std::vector<Argument> arguments_of(std::string_view text) {
  std::vector<Argument> out;
  while (!text.empty()) {
    std::string_view rest = cut(text, ",");
    Argument& one = out.emplace_back(Argument{cut(rest, "["), cut(rest, "]")});
    one.optional = one.name.ends_with('?');
    if (one.optional) one.name.remove_suffix(1);
    cut(rest, "<");
    one.below = trimmed(rest);
  }
  return out;
}

void set_sizes(Task& task, std::string_view text) {
  Sizes& sizes = task.sizes;
  const std::map<std::string_view, Index*> letters = {{"L", &sizes.length}, {"E", &sizes.embed}, {"H", &sizes.heads},
      {"Hkv", &sizes.kv_heads}, {"d", &sizes.head_dim}, {"F", &sizes.hidden}};
  for (const auto& [letter, size] : pairs_of(text)) {
    const auto common = letters.find(letter);
    std::from_chars(
        size.data(), size.data() + size.size(), common != letters.end() ? *common->second : task.letters[letter]);
  }
}

std::vector<Task> read_tasks() {
  std::vector<Task> all;
  for (const std::string_view line : text_lines("tasks.txt")) {
    std::string_view value = line;
    if (line.starts_with('[')) {
      value.remove_prefix(1);
      const std::string_view path = all.empty() ? std::string_view() : all.back().path;
      all.emplace_back().path = path;
      all.back().name = cut(value, "]"), all.back().title = trimmed(value);
      continue;
    }
    const std::string_view key = cut(value, " ");
    value = trimmed(value);
    Task& task = all.back();
    if (key == "teaches") task.teaches = value;
    if (key == "article") task.article = value;
    if (key == "path") task.path = value;
    if (key == "function") {
      task.functions.push_back(words_of(cut(value, "->")).front());
      task.returns.push_back(value.empty() ? "out" : trimmed(value));
    }
    if (key == "class") task.classes.push_back(value);
    if (key == "tensors") task.arguments = arguments_of(value);
    if (key == "parts") task.parts = words_of(value);
    if (key == "sizes") set_sizes(task, value);
    if (key == "probe") task.probe_lines.push_back(value);
    if (key == "answers") task.answers = words_of(value);
  }
  for (Task& task : all) {
    task.textbook = textbook_called(task.parts.front());
    for (const std::string_view returns : task.answers.empty() ? task.returns : std::vector<std::string_view>()) {
      const std::vector<std::string_view> words = words_of(returns);
      task.answers.insert(task.answers.end(), words.begin(), words.end());
    }
  }
  return all;
}

/// A size by its name, the letters of axes that stand for it, and parts whose tasks have it without such an axis.
struct Size {
  std::string_view name;
  Index Sizes::*size;
  std::string_view letters, parts = {};
};
constexpr Size kSizes[] = {{"batch", &Sizes::batch, "B"}, {"length", &Sizes::length, "L T"},
    {"memory", &Sizes::memory, "M S"}, {"embed", &Sizes::embed, "E"}, {"heads", &Sizes::heads, "H", "heads"},
    {"kv_heads", &Sizes::kv_heads, "G"}, {"head_dim", &Sizes::head_dim, "d", "heads narrow"},
    {"hidden", &Sizes::hidden, "F"}};

/// Whether a word of Argument::axes stands for this size, with the same size of a letter everywhere.
bool axis_fits(std::string_view word, Index size, std::map<std::string_view, Index>& letters) {
  const auto [factor, letter] = cut_axis(word);
  if (letter.empty()) return size == factor;
  return size % factor == 0 && letters.emplace(letter, size / factor).first->second == size / factor;
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = read_tasks();
  return all;
}

const Task* find_task(std::string_view name) {
  const auto found = std::ranges::find(tasks(), name, &Task::name);
  return found == tasks().end() ? nullptr : &*found;
}

std::pair<Index, std::string_view> cut_axis(std::string_view word) {
  Index factor = 1;
  const char* end = std::from_chars(word.data(), word.data() + word.size(), factor).ptr;
  return {factor, word.substr(static_cast<std::size_t>(end - word.data()))};
}

bool Task::has(std::string_view part) const { return std::ranges::find(parts, part) != parts.end(); }
bool Task::takes(std::string_view argument) const {
  return std::ranges::find(arguments, argument, &Argument::name) != arguments.end();
}

void check_probe(const Task& task, const Probe& probe) {
  std::map<std::string_view, Index> letters;
  for (const Argument& argument : task.arguments) {
    if (!probe.has(argument.name)) {
      if (argument.optional) continue;
      throw OptionError(
          "[judge] a probe of " + std::string(task.name) + " lacks the tensor '" + std::string(argument.name) + "'");
    }
    const Shape& shape = probe.at(argument.name).shape;
    const std::vector<std::string_view> axes = words_of(argument.axes);
    bool fits = axes.size() == shape.size();
    for (std::size_t n = 0; fits && n < axes.size(); ++n) fits = axis_fits(axes[n], shape[n], letters);
    if (!fits) {
      throw OptionError("[judge] '" + std::string(argument.name) + "' of a probe of " + std::string(task.name) +
                        " must be [" + std::string(argument.axes) + "]: got " +
                        shape_text(shape.data(), static_cast<int>(shape.size())));
    }
  }
  try {
    run(task.textbook, probe);
  } catch (const NotApplicable&) {
    throw OptionError("[judge] a probe of " + std::string(task.name) + ": its numbers do not fit its tensors");
  }
}

std::string task_names() {
  std::string names;
  for (const Task& task : tasks()) names.append(names.empty() ? "" : ", ").append(task.name);
  return names;
}

std::string Task::size_names() const {
  std::vector<std::string_view> axes;
  for (const Argument& argument : arguments) {
    for (const std::string_view axis : words_of(argument.axes)) axes.push_back(cut_axis(axis).second);
  }
  std::string names;
  for (const Size& size : kSizes) {
    const auto is_axis = [&](std::string_view letter) { return std::ranges::find(axes, letter) != axes.end(); };
    const auto is_part = [&](std::string_view part) { return has(part); };
    const std::vector<std::string_view> own = words_of(size.letters), of = words_of(size.parts);
    if (std::ranges::any_of(own, is_axis) || std::ranges::any_of(of, is_part))
      names.append(names.empty() ? "" : ", ").append(size.name);
  }
  return names;
}

bool set_size(Sizes& sizes, std::string_view name, double size) {
  const auto found = std::ranges::find(kSizes, name, &Size::name);
  if (found == std::end(kSizes)) return false;
  const Index most = name == "embed" || name == "hidden" ? 4096 : 256;
  if (!(size >= 1 && size <= static_cast<double>(most)) || size != std::floor(size)) {
    throw OptionError("the size " + std::string(name) + " must be an integer from 1 to " + std::to_string(most));
  }
  sizes.*found->size = static_cast<Index>(size);
  return true;
}

Sizes default_sizes(std::string_view task) {
  const Task* found = find_task(task);
  if (found == nullptr)
    throw OptionError("[judge] unknown task '" + std::string(task) + "'; `qkv practice` lists them");
  return found->sizes;
}

}  // namespace qkv::judge
