// What `qkv judge` was given, the two ways to run code, and a finding for editors. Not: how it is written on the
// command line (cmd_judge.cc), a finding for people (src/judge/report.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "judge/child.h"
#include "judge/exchange.h"

namespace qkv::cli {

struct JudgeOptions {
  std::string file, name;  ///< of FILE[:NAME]
  std::string task, python;
  std::vector<std::string> map, init;  ///< as they are typed: "W_q=query", "dim=48,heads=4"
  std::string probes, answers, run, sizes;
  std::string sarif;  ///< a file, or "-"
  bool hint = false, json = false, problems = false, sandbox = false, catalogue = false;
  std::optional<double> seconds;
  std::optional<std::uint64_t> memory_mb, seed;

  Limits limits() const { return {.seconds = seconds.value_or(60), .memory = memory_mb.value_or(4096) << 20}; }
};

/// Of --probes and --run: a task's probes at its own sizes, and what --sizes says.
std::vector<StateDict> probes_of(const JudgeOptions& options);

/// The Python that runs a file: --python, that of $VIRTUAL_ENV, python3. UsageError where there is none.
std::filesystem::path interpreter(const std::string& asked);
/// A person's Python file, run by the embedded runner (python/qkv/_judge/runner) in a child process; an exercise that
/// is right is done (python.cc).
judge::Finding judge_python(const JudgeOptions& options);
/// --run: a program of any language, started once a probe: it reads one .safetensors and writes another. Exit code 3
/// with a text that begins with "fill in" is a program not yet filled in (run.cc).
judge::Finding judge_program(const JudgeOptions& options);

/// Words of --run between spaces; quotes '...' and "..." keep spaces, a backslash outside '...' takes the next
/// character as it is. No shell: no variables, no wildcards. UsageError for a quote that does not end.
std::vector<std::string> split_words(const std::string& text);

/// SARIF 2.1.0: a result for each mistake, or one for code that could not be judged; none where all is right. `hint`:
/// the rule is "wrong", the message a question (places.cc).
std::string sarif_of(const judge::Finding& finding, bool hint);
/// "mine.py:12: error: The scores are not divided by sqrt(d). [no-scale]": the same as lines.
std::string problems_of(const judge::Finding& finding, bool hint);

}  // namespace qkv::cli
