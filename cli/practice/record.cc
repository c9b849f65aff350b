#include "practice/record.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

std::string set_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Empty where neither variable says one.
fs::path record_file() {
  if (const std::string state = set_or_empty("XDG_STATE_HOME"); !state.empty()) return fs::path(state) / "qkv/practice";
  const std::string home = set_or_empty("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".local/state/qkv/practice";
}

}  // namespace

Exercises done_exercises() {
  Exercises done;
  std::ifstream file(record_file());
  for (std::string line; done.size() < 1000 && std::getline(file, line);) done.insert(line.substr(0, 100));
  return done;
}

void mark_done(std::string_view task) {
  const fs::path path = record_file();
  if (path.empty() || done_exercises().contains(task)) return;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream(path, std::ios::app) << task << '\n';
}

std::string exercise_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  constexpr std::string_view kHead = " qkv practice ";
  std::getline(file, line);
  const std::size_t start = line.starts_with("#") ? 1 : 2;  // of a comment: # or //
  if (!(start == 1 || line.starts_with("//")) || !line.substr(start).starts_with(kHead)) return {};
  const std::size_t name = start + kHead.size();
  return line.substr(name, line.find(' ', name) - name);
}

}  // namespace qkv::cli
