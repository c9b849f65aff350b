// A person's Python file: run by the embedded runner in a child process, then judged.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "core/embedded_file.h"
#include "core/escape.h"
#include "judge/options.h"
#include "judge/sandbox.h"
#include "practice/record.h"
#include "qkv/io/file.h"
#include "qkv/io/safetensors.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_runner();
}

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using judge::Finding;

constexpr int kAlternatives = 8;  // readings of ambiguous parameters that are tried

void write_whole(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file)
    throw Error("[judge] " + escaped(path.string()) + " cannot be written: is there room in its folder (TMPDIR)?");
}

void write_runner(const fs::path& folder) {
  for (const EmbeddedFile& file : embedded_runner()) {
    const fs::path path = folder / file.name;
    fs::create_directories(path.parent_path());
    write_whole(path, file.text);
  }
}

/// A number, true, false, null where the text is one; otherwise the text.
Json value_of(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_primitive() && !value.is_discarded() ? value : Json(text);
}

/// "dim=48,heads=4" -> pairs.
std::vector<std::pair<std::string, std::string>> pairs(
    std::string_view option, const std::vector<std::string>& words, bool commas) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& word : words) {
    for (std::size_t start = 0; start <= word.size();) {
      const std::size_t end = commas ? std::min(word.find(',', start), word.size()) : word.size();
      const std::string one = word.substr(start, end - start);
      const std::size_t equals = one.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == one.size())
        throw UsageError(
            std::string(option) + " must be NAME=" + (commas ? "VALUE" : "YOURS") + ": got " + escaped(one));
      const std::string name = one.substr(0, equals);
      if (std::ranges::find(found, name, &std::pair<std::string, std::string>::first) != found.end())
        throw UsageError(std::string(option) + " gives " + escaped(name) + " twice: give it once");
      found.emplace_back(name, one.substr(equals + 1));
      start = end + 1;
    }
  }
  return found;
}

Json request_of(const JudgeOptions& options) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json map = Json::object(), init = Json::object();
  for (const auto& [name, theirs] : pairs("--map", options.map, false)) map[name] = theirs;
  for (const auto& [name, value] : pairs("--init", options.init, true)) init[name] = value_of(value);
  return {{"file", fs::absolute(options.file).string()}, {"name", or_null(options.name)},
      {"task", or_null(options.task)}, {"map", map}, {"init", init}, {"alternatives", kAlternatives}};
}

/// One judgement's process and folders.
class Judgement {
 public:
  explicit Judgement(const JudgeOptions& options)
      : options_(options), python_(interpreter(options.python)), folder_(scratch_.exchange()) {
    write_runner(scratch_.path() / "_judge");
    write_whole(
        scratch_.given() / "request.json", request_of(options).dump(1, ' ', false, Json::error_handler_t::replace));
  }

  Finding finding() {
    Child child(command(), scratch_);
    const bool loaded = child.line() == "ready";
    const Subject subject = read_subject(folder_);
    std::error_code error;
    if (!subject.verdict.empty() && (loaded || fs::exists(folder_ / "subject.json", error)))
      return named(not_judged(subject.verdict, subject.says, subject.traceback, subject.check), subject);
    if (!loaded) return named(died(child.end(), "while it was loaded or first called"), subject);
    std::vector<StateDict> probes =
        judge::make_probes(subject.task, subject.sizes, options_.seed.value_or(0), subject.owner);
    for (std::size_t n = 0; n < probes.size(); ++n) {
      if (!give(probe_path(scratch_.given(), n), probes[n])) return named(disturbed(), subject);
    }
    child.say("run");
    if (child.line() != "done") return named(died(child.end(), during(probes)), subject);
    Finding finding = judge_folder(folder_, subject, probes);
    if (!watch(child, finding, probes)) return named(disturbed(), subject);
    child.end();
    return finding;
  }

 private:
  ChildCommand command() const {
    std::vector<std::string> words = {
        python_.string(), "-B", (scratch_.path() / "_judge").string(), scratch_.given().string(), folder_.string()};
    if (options_.sandbox) {
      const fs::path home = fs::absolute(python_).parent_path().parent_path();  // of an environment
      words = sandboxed(words, scratch_, {fs::absolute(options_.file).parent_path(), home});
    }
    return {.words = words,
        .out = out_,
        .err = err_,
        .channel = true,
        .own_namespace = !options_.sandbox,  // it makes one itself
        .limits = options_.limits()};
  }
  /// Writes a file for the child; false where something lies in its place, which only the code can have put there.
  static bool give(const fs::path& path, const StateDict& tensors) {
    std::error_code error;
    if (fs::symlink_status(path, error).type() != fs::file_type::not_found) return false;
    io::save_safetensors(path, tensors);
    return true;
  }
  static Finding disturbed() {
    return not_judged("failed", "the code made a file among those that the judge gives it");
  }
  /// The first line whose value leaves the textbook: the child answers some probes once more. False: see give.
  bool watch(Child& child, Finding& finding, const std::vector<StateDict>& probes) const {
    const std::vector<std::size_t> wrong = judge::watched_probes(finding, probes);
    if (wrong.empty()) {
      child.say("end");
      return true;
    }
    for (const std::size_t n : wrong) {
      const fs::path path = scratch_.given() / fmt::format("stages-{}.safetensors", n);
      if (!give(path, judge::stages(finding, probes[n]))) return false;
    }
    child.say(fmt::format("watch {}", finding.reading));
    if (child.line() == "watched") set_line(finding, read_text(folder_ / "line.json"));
    return true;
  }

  static Finding named(Finding finding, const Subject& subject) {
    finding.file = subject.file, finding.name = subject.name, finding.task = subject.task;
    finding.notes.insert(finding.notes.end(), subject.notes.begin(), subject.notes.end());
    return finding;
  }

  /// "while it computed the probe "large scores"": the first without an answer.
  std::string during(const std::vector<StateDict>& probes) const {
    std::size_t n = 0;
    std::error_code error;
    while (n < probes.size() && fs::exists(answer_path(folder_, n), error)) ++n;
    if (n == probes.size()) return "after its last answer";
    return "while it computed the probe " + escaped(probes[n].metadata.at("name"));
  }

  Finding died(const ChildEnd& end, const std::string& when) const {
    const std::string last = err_.last_lines(kLastLines);
    if (last.find("No module named 'numpy'") != std::string::npos) {
      throw UsageError(
          escaped(python_.string()) + " has no NumPy: install it there, or name another Python with --python");
    }
    if (end.how == ChildEnd::How::kNotStarted)
      throw UsageError(escaped(python_.string()) + ": " + end.text(options_.limits()));
    return not_judged("failed", end.text(options_.limits()) + ", " + when, last);
  }

  const JudgeOptions& options_;
  Scratch scratch_;
  Output out_{scratch_}, err_{scratch_};
  fs::path python_, folder_;
};

}  // namespace

fs::path interpreter(const std::string& asked) {
  if (!asked.empty()) {
    if (fs::path found = find_program(asked); !found.empty()) return found;
    throw UsageError("--python " + escaped(asked) + ": is no program that can be run");
  }
  if (const char* environment = std::getenv("VIRTUAL_ENV"); environment != nullptr && *environment != '\0') {
    fs::path found = find_program((fs::path(environment) / "bin" / "python").string());
    if (!found.empty()) return found;
  }
  if (fs::path found = find_program("python3"); !found.empty()) return found;
  throw UsageError("no python3 was found: install Python with NumPy, or name one with --python");
}

Finding judge_python(const JudgeOptions& options) {
  require_file("", options.file);
  if (fs::path(options.file).extension() != ".py") {
    throw UsageError(escaped(options.file) +
                     ": only Python is run as it is; a program of another language is judged with --run './program "
                     "{in} {out}' --task NAME");
  }
  if (options.sandbox) require_sandbox();
  Finding finding = Judgement(options).finding();
  finding.file = options.file;
  if (finding.name.empty()) finding.name = options.name;
  if (finding.task.empty()) finding.task = options.task;
  if (finding.right() && exercise_of(options.file) == finding.task) mark_done(finding.task);
  return finding;
}

}  // namespace qkv::cli
