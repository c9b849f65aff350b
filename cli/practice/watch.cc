#include "practice/watch.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <thread>

#include "core/escape.h"
#include "core/sentences.h"
#include "judge/report.h"
#include "support/command.h"
#include "support/files.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Judges a file that was saved since the last time, and prints its report where that is another.
void judge_saved(Watched& one, JudgeOptions options, Clock::time_point start) {
  std::error_code error;
  const fs::file_time_type saved = fs::last_write_time(one.file, error);
  if (error || saved == one.saved) return;  // an editor may be replacing it
  one.saved = saved;
  options.file = one.file;
  one.finding = judge_python(options);
  ++one.judged;
  one.minutes = std::chrono::duration<double>(Clock::now() - start).count() / 60;
  const auto columns = static_cast<std::size_t>(std::clamp(terminal().columns, 40, 80));
  const std::string report = judge::report(one.finding, options.hint, {bold, faint, columns});
  const std::time_t now = std::time(nullptr);
  const std::string time = fmt::format("{:%H:%M:%S}", fmt::localtime(now));
  if (report == one.report) {
    print_line(faint(fmt::format("{}  {}: ", time, escaped(one.file))) + faint(said("as before")));
  } else {
    print_line(faint(fmt::format("{}  {}", time, escaped(one.file))));
    print(report);
  }
  std::fflush(stdout);  // it may be a pipe or a file that somebody follows
  one.report = report;
}

}  // namespace

std::vector<Watched> watch(
    const std::vector<std::string>& files, const JudgeOptions& options, std::optional<double> minutes) {
  std::vector<Watched> all;
  for (const std::string& file : files) {
    require_file("--watch ", file);
    all.push_back({.file = file});
  }
  const Clock::time_point start = Clock::now();
  const auto over = [&] {
    return minutes && Clock::now() - start > std::chrono::duration<double, std::ratio<60>>(*minutes);
  };
  const auto right = [](const Watched& one) { return one.finding.right(); };
  while (!std::ranges::all_of(all, right) && !over()) {
    for (Watched& one : all) judge_saved(one, options, start);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return all;
}

}  // namespace qkv::cli
