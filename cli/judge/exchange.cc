#include "judge/exchange.h"

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/io/safetensors.h"
#include "support/files.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using judge::Finding;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;

/// A regular file of a size that an answer can have: no link, no pipe.
bool readable_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error)) && fs::file_size(path, error) <= kMostBytes && !error;
}

judge::Answer read_answer(const fs::path& path) {
  judge::Answer answer;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) {
    answer.missing = true;
  } else if (!readable_file(path)) {
    answer.tensors.metadata["error"] = path.filename().string() + " is not a file of at most 256 MiB";
  } else {
    try {
      answer.tensors = io::load_safetensors(path);
    } catch (const Error& failure) {
      answer.tensors.metadata["error"] = path.filename().string() + " cannot be read: " + failure.what();
    }
  }
  return answer;
}

}  // namespace

Subject read_subject(const fs::path& folder) {
  const std::string text = read_text(folder / "subject.json");
  if (text.empty()) return {.verdict = "failed", .says = "the code ended before its first call ended"};
  return judge::subject_of(text);
}

std::string read_text(const fs::path& path) {
  return readable_file(path) ? load_text(path.filename().string(), path.string()) : std::string();
}

fs::path probe_path(const fs::path& folder, std::size_t n) { return folder / fmt::format("probe-{}.safetensors", n); }
fs::path answer_path(const fs::path& folder, std::size_t n) { return folder / fmt::format("answer-{}.safetensors", n); }

Finding judge_folder(const fs::path& folder, const Subject& subject, const std::vector<StateDict>& probes) {
  return judge_readings(subject, probes, [&](std::size_t reading) {
    const fs::path own = reading == 0 ? folder : folder / fmt::format("assignment-{}", reading);
    std::vector<judge::Answer> answers;
    for (std::size_t n = 0; n < probes.size(); ++n) answers.push_back(read_answer(answer_path(own, n)));
    return answers;
  });
}

}  // namespace qkv::cli
