// `qkv judge`: attention written by hand, right or with its mistake named. Not: the verdict (src/judge), the exercises
// (practice).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/escape.h"
#include "judge/options.h"
#include "qkv/io/safetensors.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/language.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using judge::Finding;

constexpr int kRight = 0, kWrong = 1, kNotJudged = 2;
constexpr std::string_view kStandardOutput = "-";  // as a name of a file

int exit_code(const Finding& finding) {
  if (finding.right()) return kRight;
  return finding.verdict == "wrong" || finding.verdict == "unknown" ? kWrong : kNotJudged;
}

/// "mine.py:MyAttention" -> file and name; a file whose own name has a colon is that file.
void split_name(JudgeOptions& options) {
  std::error_code error;
  const std::size_t colon = options.file.rfind(':');
  if (colon == std::string::npos || fs::exists(options.file, error)) return;
  options.name = options.file.substr(colon + 1);
  options.file.resize(colon);
  if (options.name.empty())
    throw UsageError(escaped(options.file + ":") + ": a class or function must follow the colon");
}

int print_catalogue(const JudgeOptions& options) {
  Json entries = Json::array();
  for (const judge::Entry& entry : judge::catalogue()) {
    const auto same = std::ranges::find_if(entries, [&](const Json& other) { return other["id"] == entry.id; });
    Json& row = same != entries.end()
                    ? *same
                    : entries.emplace_back(Json{{"id", entry.id}, {"kind", entry.convention ? "convention" : "mistake"},
                          {"says", said(entry.says)}, {"hint", said(entry.hint)}, {"term", entry.term},
                          {"tasks", Json::array()}});
    for (const judge::Task& task : judge::tasks()) {
      const bool listed = std::ranges::find(row["tasks"], Json(task.name)) != row["tasks"].end();
      if (!listed && judge::applies(entry, task)) row["tasks"].push_back(task.name);
    }
  }
  if (!options.task.empty()) {
    const auto other = [&](const Json& row) {
      return std::ranges::find(row["tasks"], Json(options.task)) == row["tasks"].end();
    };
    entries.erase(std::remove_if(entries.begin(), entries.end(), other), entries.end());
    for (Json& row : entries) {
      const judge::Formula formula = judge::find_task(options.task)->formula(row["term"].get<std::string>());
      row["formula"] = formula.whole, row["part"] = formula.part, row["read"] = formula.read;
    }
  }
  if (options.json) {
    print_json(entries);
    return 0;
  }
  std::size_t width = 0;
  for (const Json& entry : entries) width = std::max(width, entry["id"].get_ref<const std::string&>().size());
  for (const char* kind : {"mistake", "convention"}) {
    print_line(bold(std::string(kind) + "s"));
    for (const Json& entry : entries) {
      if (entry["kind"] == kind)
        print_line(
            fmt::format("  {:<{}}  {}", entry["id"].get<std::string>(), width, entry["says"].get<std::string>()));
    }
  }
  return 0;
}

int write_probes(const JudgeOptions& options) {
  if (options.task.empty()) throw UsageError("--probes needs --task: each task has its own");
  const fs::path folder = options.probes;
  const std::vector<StateDict> probes = probes_of(options);
  std::error_code error;
  fs::create_directory(folder, error);
  if (!fs::is_directory(folder))
    throw UsageError("--probes " + escaped(options.probes) + ": no such folder, nor can it be made");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("probe-") || name.starts_with("answer-"))
      throw UsageError("--probes " + escaped(options.probes) + ": holds " + escaped(name) + ": name an empty folder");
  }
  Outputs outputs;
  Json files = Json::array();
  for (std::size_t n = 0; n < probes.size(); ++n) {
    const std::string path = probe_path(folder, n).string();
    outputs.expect("--probes", path);
    outputs.add_safetensors(path, probes[n]);
    files.push_back({{"file", path}, {"name", probes[n].metadata.at("name")}, {"call", probes[n].metadata.at("call")}});
  }
  outputs.commit();
  if (options.json) {
    print_json({{"task", options.task}, {"probes", files}});
  } else {
    print_line(
        fmt::format("wrote {} probes of {} to {}; write answer-N.safetensors beside each, then: qkv judge --answers {}",
            probes.size(), options.task, one_line(options.probes), one_line(options.probes)));
  }
  return 0;
}

Finding judge_answers(const JudgeOptions& options) {
  const fs::path folder = options.answers;
  std::vector<StateDict> probes;
  for (std::error_code error; fs::exists(probe_path(folder, probes.size()), error);)
    probes.push_back(load_safetensors("--answers", probe_path(folder, probes.size()).string()));
  if (probes.empty())
    throw UsageError("--answers " + escaped(options.answers) + ": holds no probe-0.safetensors (see --probes)");
  const std::string said = judge::value_of(probes.front().metadata, "task"), task = said.empty() ? options.task : said;
  if (judge::find_task(task) == nullptr)
    throw UsageError("--answers: the probes do not say of which task they are: give --task");
  if (!options.task.empty() && options.task != task)
    throw UsageError("--task " + options.task + ": the probes in " + escaped(options.answers) + " are of " + task);
  return judge_folder(folder, {.file = options.answers, .task = task}, probes);
}

void check_usage(const JudgeOptions& options) {
  const std::pair<const char*, bool> kinds[] = {{"FILE", !options.file.empty()}, {"--run", !options.run.empty()},
      {"--probes", !options.probes.empty()}, {"--answers", !options.answers.empty()},
      {"--catalogue", options.catalogue}};
  std::string given;
  for (const auto& [name, there] : kinds) {
    if (there) given += (given.empty() ? "" : " and ") + std::string(name);
  }
  if (given.empty()) throw UsageError("say what to judge: FILE.py, --run CMD or --answers DIR (see qkv judge --help)");
  if (given.find(" and ") != std::string::npos) throw UsageError(given + " exclude one another: give one");
  if (!options.task.empty() && judge::find_task(options.task) == nullptr)
    throw UsageError("--task must be one of " + judge::task_names() + ": got " + escaped(options.task));
  const bool python = !options.file.empty(), runs = python || !options.run.empty();
  const bool judges = runs || !options.answers.empty(), probes = !options.probes.empty() || !options.run.empty();
  constexpr const char *kFile = "a Python file", *kRun = "a file or program that is run", *kVerdict = "a verdict";
  check_only_about({{"--map", !options.map.empty(), python, kFile}, {"--init", !options.init.empty(), python, kFile},
      {"--python", !options.python.empty(), python, kFile}, {"--problems", options.problems, python, kFile},
      {"--sandbox", options.sandbox, runs, kRun}, {"--time-limit", options.seconds.has_value(), runs, kRun},
      {"--memory", options.memory_mb.has_value(), runs, kRun},
      {"--sizes", !options.sizes.empty(), probes, "--probes and --run"},
      {"--seed", options.seed.has_value(), python || probes, "probes, which are made for FILE, --run and --probes"},
      {"--hint", options.hint, judges, kVerdict}, {"--sarif", !options.sarif.empty(), judges, kVerdict}});
  const bool sarif_alone = options.sarif == kStandardOutput;
  if (options.json && (options.problems || sarif_alone))
    throw UsageError("--json is all of standard output: leave out --problems and --sarif -");
  if (options.json && options.hint)
    throw UsageError("--json names the mistake: leave out --hint, and read `hint` there");
  if (sarif_alone && options.problems) throw UsageError("--sarif - is all of standard output: leave out --problems");
  if (const double seconds = options.limits().seconds; !(seconds > 0 && seconds <= 1e6))
    throw UsageError(fmt::format("--time-limit must be a number of seconds above 0: got {:g}", seconds));
}

int run_judge(const JudgeOptions& asked) {
  JudgeOptions options = asked;
  check_usage(options);
  if (options.catalogue) return print_catalogue(options);
  if (!options.probes.empty()) return write_probes(options);
  const auto start = std::chrono::steady_clock::now();
  Finding finding;
  Outputs outputs;
  if (!options.file.empty()) split_name(options);
  outputs.protect(options.file);
  for (const std::string& word : options.run.empty() ? std::vector<std::string>() : split_words(options.run))
    outputs.protect(word);
  std::error_code error;
  for (std::size_t n = 0; !options.answers.empty() && fs::exists(probe_path(options.answers, n), error); ++n) {
    outputs.protect(probe_path(options.answers, n).string());
    outputs.protect(answer_path(options.answers, n).string());
  }
  if (options.sarif != kStandardOutput) outputs.expect("--sarif", options.sarif, {".sarif", ".json"});
  if (!options.file.empty()) {
    finding = judge_python(options);
  } else {
    finding = options.run.empty() ? judge_answers(options) : judge_program(options);
  }
  finding.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.sarif == kStandardOutput) {
    print(sarif_of(finding, options.hint));
  } else if (options.json) {
    print(judge::to_json(finding) + "\n");
  } else {
    const auto columns = static_cast<std::size_t>(std::clamp(terminal().columns, 40, 80));
    print(report(finding, options.hint, {bold, faint, columns}));
    if (options.problems) print(problems_of(finding, options.hint));
  }
  if (!options.sarif.empty() && options.sarif != kStandardOutput) {
    outputs.add(options.sarif, sarif_of(finding, options.hint));
    outputs.commit();
  }
  return exit_code(finding);
}

void declare_judge(Options& add, JudgeOptions& options) {
  add("FILE FILE[:NAME]", &options.file, "A Python file; FILE:NAME one class or function of it");
  add.heading("What it is, where that is not clear");
  add("--task NAME", &options.task, "What the code is to compute: a name of qkv practice");
  add("--map NAME=YOURS", &options.map, "A parameter or argument of the task by your name for it; may be repeated");
  add("--init NAME=VALUE,...", &options.init, "Arguments of your class's constructor: dim=48,heads=4");
  add.heading("Other languages");
  add("--run CMD", &options.run, "A program, started once a probe: './mine {in} {out}'");
  add("--probes DIR", &options.probes, "Write the inputs and parameters of --task as DIR/probe-N.safetensors");
  add("--answers DIR", &options.answers, "Judge DIR/answer-N.safetensors, written beside the probes of --probes");
  add("--sizes JSON", &options.sizes, "Sizes of --probes and --run: '{\"embed\": 48, \"heads\": 4}'");
  add.heading("Output");
  add("--hint", &options.hint, "Say where to look, not what is wrong");
  add.json(options.json);
  add("--sarif FILE", &options.sarif,
      "Write the finding as SARIF 2.1.0 too, .sarif or .json; -: to standard output, alone");
  add("--problems", &options.problems, "Print FILE:LINE: error: lines too, for editors");
  add("--catalogue", &options.catalogue, "List every mistake and convention that is known");
  add.heading("Limits");
  add("--time-limit S", &options.seconds,
      "Seconds, after which every process of the judged code is ended (default 60)");
  add("--memory N", &options.memory_mb, "Address space per process, MiB (default 4096)",
      {.least = 64, .most = std::uint64_t{1} << 40});
  add("--sandbox", &options.sandbox,
      "Behind bubblewrap: no network, nothing can be written but temporary files and answers");
  add("--python PROGRAM", &options.python, "The Python that runs FILE (default: that of $VIRTUAL_ENV, then python3)");
  add("--seed N", &options.seed, "Seed of the probes' numbers (default 0)");
}

const bool chinese_added = add_chinese(judge::add_chinese);
const bool judge_added = add_command({"judge", "Check attention that you wrote; name its mistake",
                                         "qkv judge v3.py\n  qkv judge mine.py:MyAttention --hint\n"
                                         "  qkv judge v3.py --sarif v3.sarif\n"
                                         "  qkv judge --run './mine {in} {out}' --task sdpa"},
    declare_judge, run_judge);

}  // namespace

std::vector<StateDict> probes_of(const JudgeOptions& options) {
  return about("--sizes", [&] {
    const std::string& sizes = options.sizes;
    return judge::make_probes(options.task,
        sizes.empty() ? judge::default_sizes(options.task) : judge::sizes_of(options.task, sizes),
        options.seed.value_or(0));
  });
}

}  // namespace qkv::cli
