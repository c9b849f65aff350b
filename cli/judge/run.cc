// --run: a program of any language, started once a probe.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/escape.h"
#include "judge/options.h"
#include "judge/sandbox.h"
#include "judge/text/language.h"
#include "practice/record.h"
#include "qkv/io/safetensors.h"
#include "support/command.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using judge::Finding;

constexpr int kUnfilled = 3;

/// The words of the command, its program by its whole path.
std::vector<std::string> words_of(const JudgeOptions& options) {
  std::vector<std::string> words = split_words(options.run);
  for (const char* mark : {"{in}", "{out}"}) {
    if (options.run.find(mark) == std::string::npos)
      throw UsageError(
          "--run must say where the files stand, as in './mine {in} {out}': there is no " + std::string(mark));
  }
  const fs::path program = find_program(words.front());
  if (program.empty()) throw UsageError("--run: " + escaped(words.front()) + " is no program that can be run");
  words.front() = fs::absolute(program).string();
  return words;
}

/// What the program said of a part that is left to fill in; empty when it did not.
std::string unfilled_text(const ChildEnd& end, const std::string& said) {
  const std::size_t at = said.find("fill in");
  if (end.how != ChildEnd::How::kExited || end.number != kUnfilled || at == std::string::npos) return {};
  return said.substr(at, said.find('\n', at) - at);
}

}  // namespace

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool any = false;
  for (std::size_t n = 0; n < text.size(); ++n) {
    const char c = text[n];
    if (c == '\\' && quote != '\'' && n + 1 < text.size()) {
      word += text[++n], any = true;
    } else if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c, any = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (any) words.push_back(std::exchange(word, {}));
      any = false;
    } else {
      word += c, any = true;
    }
  }
  if (quote != 0) throw UsageError("--run: a quote " + std::string(1, quote) + " does not end");
  if (any) words.push_back(word);
  if (words.empty()) throw UsageError("--run needs a command, as in './mine {in} {out}'");
  return words;
}

Finding judge_program(const JudgeOptions& options) {
  if (options.task.empty()) throw UsageError("--run needs --task: a program does not say what it computes");
  if (options.sandbox) require_sandbox();
  const std::vector<std::string> words = words_of(options);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const auto named = [&](Finding finding) {
    finding.file = options.run, finding.task = options.task;
    return finding;
  };
  const std::vector<StateDict> probes = probes_of(options);
  const Scratch scratch;
  const fs::path folder = scratch.exchange();
  for (std::size_t n = 0; n < probes.size(); ++n) io::save_safetensors(probe_path(scratch.given(), n), probes[n]);
  for (std::size_t n = 0; n < probes.size(); ++n) {
    std::vector<std::string> own = words;
    for (std::string& word : own) {
      word = judge::replaced(word, "{in}", probe_path(scratch.given(), n).string());
      word = judge::replaced(word, "{out}", answer_path(folder, n).string());
    }
    if (options.sandbox) {
      std::vector<fs::path> needed;  // the program, and the files that its words name
      for (const std::string& word : words) {
        if (std::error_code error; fs::exists(word, error)) needed.push_back(fs::absolute(word));
      }
      own = sandboxed(own, scratch, needed);
    }
    Limits limits = options.limits();
    limits.seconds = std::max(limits.seconds - seconds(), 0.0);
    const Output out(scratch), err(scratch);
    Child child({.words = own, .out = out, .err = err, .own_namespace = !options.sandbox, .limits = limits}, scratch);
    const ChildEnd end = child.end();
    const std::string said = err.last_lines(kLastLines);
    if (end.success()) {
      if (std::error_code error; fs::exists(answer_path(folder, n), error)) continue;
      return named(not_judged("failed",
          fmt::format("it ended and wrote no {{out}} for probe {} ({})", n, probes[n].metadata.at("name")), said));
    }
    if (const std::string text = unfilled_text(end, said + "\n" + out.last_lines(kLastLines)); !text.empty())
      return named(not_judged("unfilled", text));
    return named(not_judged("failed",
        fmt::format("{}, on probe {} ({})", end.text(options.limits()), n, probes[n].metadata.at("name")), said));
  }
  Finding finding = named(judge_folder(folder, {.task = options.task}, probes));
  const auto printed = [&](const std::string& word) { return exercise_of(word + ".cc") == options.task; };
  if (finding.right() && std::ranges::any_of(words, printed)) mark_done(options.task);
  return finding;
}

}  // namespace qkv::cli
