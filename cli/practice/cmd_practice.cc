// `qkv practice`: the ladder of exercises, and one of them to fill in.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <utility>

#include "core/escape.h"
#include "core/sentences.h"
#include "judge/task.h"
#include "practice/exercises.h"
#include "practice/record.h"
#include "practice/watch.h"
#include "support/claim.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

using judge::Task;

struct PracticeCommandOptions {
  std::string name, watch, mock;
  JudgeOptions judge;  ///< of the files that are watched
  bool numpy = false, torch = false, cpp = false, solution = false, json = false;

  std::vector<std::string> asked() const {
    std::vector<std::string> languages;
    for (const auto& [given, language] : {std::pair(numpy, "numpy"), {torch, "torch"}, {cpp, "cpp"}}) {
      if (given) languages.emplace_back(language);
    }
    return languages;
  }
};

std::string chosen(const Task& task, const PracticeCommandOptions& options) {
  const std::vector<std::string> asked = options.asked(), there = languages_of(task.name);
  if (asked.size() > 1) throw UsageError("--numpy, --torch and --cpp: give one of them");
  if (there.empty()) throw UsageError("the exercise " + std::string(task.name) + " has no file to fill in");
  if (asked.empty()) return there.front();
  if (std::ranges::find(there, asked.front()) == there.end())
    throw UsageError(fmt::format(
        "the exercise {} has no file for --{}: it has {}", task.name, asked.front(), fmt::join(there, ", ")));
  return asked.front();
}

/// Whether it can be written as asked.
bool there(const Task& task, const PracticeCommandOptions& options) {
  const std::vector<std::string> asked = options.asked(), languages = languages_of(task.name);
  return asked.empty() ? !languages.empty() : std::ranges::find(languages, asked.front()) != languages.end();
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
  const Exercises done = done_exercises();
  int number = 0;
  std::string_view path;
  for (const Task& task : judge::tasks()) {
    if (task.path != path) print_line(bold(said(path = task.path)));
    const std::string line = row(++number, task.name, task.article, task.teaches);
    const bool right = done.contains(task.name);
    print_line(right ? faint(line) + said("  (done)") : line);
  }
  print_line();
  print_line(
      "qkv practice v3 > v3.py    a file to fill in (--numpy, --torch, --cpp; --solution prints one, commented)");
  print_line("qkv judge v3.py            right, or what is wrong");
  print_line("qkv practice next          the next one that is not done, as a file in this folder");
  print_line("qkv practice --watch v3.py judges it at every save");
  print_line("qkv practice --mock 45m    an interview: three exercises and a clock");
  print_line("articles 000 to 004: docs/articles.md");
}

/// Writes the files to fill in, v3.py or v3.cc, all or none; a file of that name that is there already stays.
std::vector<std::string> written_exercises(
    const std::vector<const Task*>& tasks, const PracticeCommandOptions& options, bool may_exist) {
  std::vector<std::string> paths;
  Outputs outputs;
  for (const Task* task : tasks) {
    const std::string language = chosen(*task, options);
    const std::string& path = paths.emplace_back(file_of(task->name) + (language == "cpp" ? ".cc" : ".py"));
    if (std::filesystem::exists(path)) {
      if (!may_exist) throw UsageError(escaped(path) + " is here already: begin in an empty folder");
      require_file("", path);
      continue;
    }
    outputs.expect("", path);
    outputs.add(path, printed_exercise(task->name, language, false));
  }
  outputs.commit();
  return paths;
}

int next_exercise(const PracticeCommandOptions& options) {
  const Exercises done = done_exercises();
  const auto open = [&](const Task& task) { return !done.contains(task.name) && there(task, options); };
  const auto next = std::ranges::find_if(judge::tasks(), open);
  if (next == judge::tasks().end()) {
    print_line("every exercise is done");
    return 0;
  }
  const std::string path = written_exercises({&*next}, options, true).front();
  print_line(bold(fmt::format("{}: {}", next->name, said(next->title))));
  print_line(wrapped(next->teaches, 2));
  print_line(fmt::format("  {}", path) + faint(said("  is the file to fill in")));
  print_line(faint(
      options.cpp ? fmt::format("  qkv judge --run './{} {{in}} {{out}}' --task {}", file_of(next->name), next->name)
                  : fmt::format("  qkv judge {0}    qkv judge {0} --hint    qkv practice --watch {0}", path)));
  return 0;
}

/// "45m", "1h", "90": minutes.
double minutes_of(const std::string& text) {
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (unit == "h") number *= 60;
  if (end == text.c_str() || (unit != "m" && unit != "h" && !unit.empty()) || !(number > 0 && number <= 24 * 60))
    throw UsageError("--mock must be a time such as 45m or 1h: got " + escaped(text));
  return number;
}

/// Three exercises of different parts of the path, those that are not done first; a clock; a report.
int mock_interview(const PracticeCommandOptions& options) {
  const double minutes = minutes_of(options.mock);
  const Exercises done = done_exercises();
  std::vector<const Task*> drawn, all;
  for (const Task& task : judge::tasks()) {
    if (there(task, options)) all.push_back(&task);
  }
  std::ranges::shuffle(all, std::mt19937(std::random_device()()));
  std::ranges::stable_sort(all, {}, [&](const Task* task) { return done.contains(task->name); });
  for (const Task* task : all) {
    const auto same = [&](const Task* other) { return other->path == task->path; };
    if (drawn.size() < 3 && std::ranges::none_of(drawn, same)) drawn.push_back(task);
  }
  static_cast<void>(interpreter(options.judge.python));  // where there is none nothing is written
  const std::vector<std::string> files = written_exercises(drawn, options, false);
  for (std::size_t n = 0; n < files.size(); ++n) print_line(fmt::format("  {}  {}", files[n], said(drawn[n]->title)));
  print_line(
      wrapped(fmt::format("{:g} minutes from now. Every save is judged; Ctrl-C ends it without a report.", minutes)));
  const std::vector<Watched> results = watch(files, options.judge, minutes);
  print_line();
  bool right = true;
  for (const Watched& one : results) {
    right = right && one.finding.right();
    print_line(fmt::format(
        "{:<20} {:<10} {:>3} judged, {:.0f} min", one.file, said(one.finding.verdict), one.judged, one.minutes));
  }
  return right ? 0 : 1;
}

int run_practice(const PracticeCommandOptions& options) {
  const bool mock = !options.mock.empty(), watches = mock || !options.watch.empty();
  const bool prints = !watches && options.name != "next", asked = !options.asked().empty();
  constexpr const char* kWatched = "files that are watched: --watch and --mock";
  check_only_about({{"--hint", options.judge.hint, watches, kWatched},
      {"--python", !options.judge.python.empty(), watches, kWatched},
      {"--solution", options.solution, prints, "an exercise that is printed"},
      {"--json", options.json, prints, "the list and an exercise that is printed"},
      {"--numpy, --torch or --cpp", asked, mock || !watches, "an exercise that is written or printed"},
      {"--cpp", options.cpp, !mock, "a program, which --mock does not judge"}});
  if (!options.mock.empty()) return mock_interview(options);
  if (!options.watch.empty()) {
    watch({options.watch}, options.judge);
    return 0;
  }
  if (options.name == "next") return next_exercise(options);
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
  const Task* found = judge::find_task(options.name);
  if (found == nullptr)
    throw UsageError("no exercise is called " + escaped(options.name) + ": there are " + judge::task_names());
  const Task& task = *found;
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
  add("NAME", &options.name, "The exercise; next: the first that is not done, as a file; without it: the path");
  add("--numpy", &options.numpy, "As functions of NumPy arrays");
  add("--torch", &options.torch, "As PyTorch modules (default where the exercise has one)");
  add("--cpp", &options.cpp, "As a program in C++, judged with qkv judge --run");
  add("--solution", &options.solution, "Filled in, commented");
  add.json(options.json);
  add.heading("The path");
  add("--watch FILE", &options.watch, "Judge FILE at every save and show what changed; ends when it is right",
      {.excludes = {"NAME"}});
  add("--mock TIME", &options.mock, "An interview: three exercises, a clock (45m, 1h) and a report",
      {.excludes = {"NAME", "--watch"}});
  add("--hint", &options.judge.hint, "With --watch or --mock: point at a mistake without naming it");
  add("--python PROGRAM", &options.judge.python, "With --watch or --mock: the Python that runs the file");
}

const bool practice_added =
    add_command({"practice", "Exercises: attention to write by hand, from the formula to a training step",
                    "qkv practice\n  qkv practice v3 > v3.py\n  qkv judge v3.py"},
        declare_practice, run_practice);

}  // namespace
}  // namespace qkv::cli
