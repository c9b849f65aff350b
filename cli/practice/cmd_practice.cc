// `qkv practice`: the ladder of exercises, and one of them to fill in.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/escape.h"
#include "core/sentences.h"
#include "judge/task.h"
#include "practice/exercises.h"
#include "support/claim.h"
#include "support/command.h"
#include "support/json.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

using judge::Task;

struct PracticeCommandOptions {
  std::string name;
  bool numpy = false, torch = false, cpp = false, solution = false, json = false;

  std::vector<std::string> asked() const {
    std::vector<std::string> languages;
    for (const auto& [given, language] : {std::pair(numpy, "numpy"), {torch, "torch"}, {cpp, "cpp"}}) {
      if (given) languages.emplace_back(language);
    }
    return languages;
  }
};

const Task& task_called(const std::string& name) {
  if (const Task* task = judge::find_task(name)) return *task;
  throw UsageError("no exercise is called " + escaped(name) + ": there are " + judge::task_names());
}

std::string chosen(const Task& task, const PracticeCommandOptions& options) {
  const std::vector<std::string> asked = options.asked(), there = languages_of(task.name);
  if (asked.size() > 1) throw UsageError("--numpy, --torch and --cpp: give one of them");
  if (there.empty()) throw UsageError("the exercise " + options.name + " has no file to fill in");
  if (asked.empty()) return there.front();
  if (std::ranges::find(there, asked.front()) == there.end())
    throw UsageError(fmt::format(
        "the exercise {} has no file for --{}: it has {}", options.name, asked.front(), fmt::join(there, ", ")));
  return asked.front();
}

Json to_json(const Task& task) {
  const auto signatures = [&](const std::vector<std::string_view>& names) {
    Json all = Json::array();
    for (const std::string_view name : names) {
      if (const std::string found = signature(task.name, name); !found.empty()) all.push_back(found);
    }
    return all;
  };
  return {{"name", task.name}, {"title", said(task.title)}, {"teaches", said(task.teaches)}, {"article", task.article},
      {"functions", signatures(task.functions)}, {"classes", signatures(task.classes)},
      {"languages", languages_of(task.name)}};
}

void print_ladder() {
  std::size_t names = 0;
  for (const Task& task : judge::tasks()) names = std::max(names, task.name.size());
  const auto row = [&](const auto& number, std::string_view name, std::string_view article, std::string_view teaches) {
    const std::string start = fmt::format("{:>2}  {:<{}}  {:<18}  ", number, name, names, said(article));
    const std::size_t columns = columns_of(start);
    return start + wrapped(teaches, columns).substr(columns);
  };
  print_line(faint(row("", said("exercise"), "article", "what it teaches")));
  int number = 0;
  for (const Task& task : judge::tasks()) print_line(row(++number, task.name, task.article, task.teaches));
  print_line();
  print_line(
      "qkv practice v3 > v3.py    a file to fill in (--numpy, --torch, --cpp; --solution prints one, commented)");
  print_line("qkv judge v3.py            right, or what is wrong");
  print_line("articles 000 to 004: docs/articles.md");
}

int run_practice(const PracticeCommandOptions& options) {
  if (options.name.empty()) {
    if (!options.asked().empty() || options.solution)
      throw UsageError("--numpy, --torch, --cpp and --solution are about one exercise: name it");
    if (!options.json) {
      print_ladder();
      return 0;
    }
    Json document = Json::array();
    for (const Task& task : judge::tasks()) document.push_back(to_json(task));
    print_json(document);
    return 0;
  }
  const Task& task = task_called(options.name);
  if (options.json) {
    if (!options.asked().empty() || options.solution)
      throw UsageError("--json describes an exercise: leave the others out");
    print_json(to_json(task));
    return 0;
  }
  print(printed_exercise(task.name, chosen(task, options), options.solution));
  return 0;
}

void declare_practice(Options& add, PracticeCommandOptions& options) {
  add("NAME", &options.name, "The exercise; without it: the ladder");
  add("--numpy", &options.numpy, "As functions of NumPy arrays");
  add("--torch", &options.torch, "As PyTorch modules (default where the exercise has one)");
  add("--cpp", &options.cpp, "As a program in C++, judged with qkv judge --run");
  add("--solution", &options.solution, "Filled in, commented");
  add.json(options.json);
}

const bool practice_added =
    add_command({"practice", "Exercises: attention to write by hand, from the formula to a training step",
                    "qkv practice\n  qkv practice v3 > v3.py\n  qkv judge v3.py"},
        declare_practice, run_practice);

}  // namespace
}  // namespace qkv::cli
