#include "judge/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/escape.h"
#include "qkv/error.h"
#include "qkv/io/safetensors.h"
#include "support/files.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;
using judge::Finding;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> found;
  const auto list = object.find(key);
  for (const Json& one : list != object.end() && list->is_array() ? *list : Json::array()) {
    if (one.is_string()) found.push_back(one);
  }
  return found;
}

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

void take_sizes(const Json& given, judge::Sizes& sizes) {
  if (!given.is_object())
    throw UsageError("--sizes must be an object like {\"embed\": 48, \"heads\": 4}: got " + given.dump());
  for (const auto& [name, size] : given.items()) {
    try {
      if (!size.is_null()) judge::set_size(sizes, name, size.is_number_integer() ? size.get<double>() : 0);
    } catch (const OptionError& error) {
      throw UsageError(std::string(error.what()) + ": got " + size.dump());
    }
  }
  const auto says = [&](const char* key) { return given.contains(key) && !given[key].is_null(); };
  if (says("heads") && !says("kv_heads")) sizes.kv_heads = sizes.heads;
  if ((says("embed") || says("heads")) && !says("head_dim") && sizes.embed % sizes.heads == 0)
    sizes.head_dim = sizes.embed / sizes.heads;
}

Subject read_subject(const fs::path& folder) {
  Subject subject;
  const auto failed = [&](const std::string& says) {
    subject.verdict = "failed", subject.says = says;
    return subject;
  };
  const fs::path path = folder / "look.json";
  if (!readable_file(path)) return failed("the code ended before it was looked at");
  const Json document = Json::parse(load_text("look.json", path.string()), nullptr, false);
  if (!document.is_object()) return failed("what was seen of the code (look.json) is not JSON");
  subject.file = text_of(document, "file"), subject.name = text_of(document, "name"),
  subject.task = text_of(document, "task");
  subject.verdict = text_of(document, "verdict"), subject.says = text_of(document, "says");
  subject.traceback = text_of(document, "traceback");
  subject.notes = texts_of(document, "notes"), subject.untried = texts_of(document, "untried");
  subject.conventions = texts_of(document, "conventions");
  if (!subject.verdict.empty()) {
    if (subject.verdict != "unfilled") subject.verdict = "failed";
    return subject;
  }
  if (judge::find_task(subject.task) == nullptr) return failed("no task is called " + escaped(subject.task));
  subject.sizes = judge::default_sizes(subject.task);
  try {
    take_sizes(document.value("sizes", Json::object()), subject.sizes);
  } catch (const UsageError& error) {
    return failed(std::string(error.what()) + " (build it smaller: --init dim=48,heads=4)");
  }
  if (const Json has = document.value("has", Json::object()); has.is_object()) {
    const auto said = [&](const char* part, bool otherwise) {
      return has.contains(part) && has[part].is_boolean() ? has[part].get<bool>() : otherwise;
    };
    const bool rate = has.contains("dropout") && has["dropout"].is_number();
    subject.owner = {.output = said("output", true),
        .absent = texts_of(has, "absent"),
        .causal = said("causal", false),
        .dropout = rate ? std::optional(has["dropout"].get<double>()) : std::nullopt};
  }
  if (const Json assignments = document.value("assignments", Json::array()); assignments.is_array()) {
    for (const Json& one : assignments) {
      if (one.is_object()) subject.assignments.push_back({text_of(one, "label"), text_of(one, "convention")});
    }
  }
  if (subject.assignments.empty()) subject.assignments.push_back({});
  return subject;
}

fs::path probe_path(const fs::path& folder, std::size_t n) { return folder / fmt::format("probe-{}.safetensors", n); }
fs::path answer_path(const fs::path& folder, std::size_t n) { return folder / fmt::format("answer-{}.safetensors", n); }

std::vector<StateDict> read_probes(const fs::path& folder) {
  std::vector<StateDict> probes;
  for (std::error_code error; fs::exists(probe_path(folder, probes.size()), error);) {
    probes.push_back(load_safetensors("--answers", probe_path(folder, probes.size()).string()));
  }
  return probes;
}

std::vector<judge::Answer> read_answers(const fs::path& folder, std::size_t count) {
  std::vector<judge::Answer> answers;
  for (std::size_t n = 0; n < count; ++n) answers.push_back(read_answer(answer_path(folder, n)));
  return answers;
}

Finding judge_folder(const fs::path& folder, const Subject& subject, const std::vector<StateDict>& probes) {
  return judge_readings(subject, probes, [&](std::size_t n) {
    return read_answers(n == 0 ? folder : folder / fmt::format("assignment-{}", n), probes.size());
  });
}

}  // namespace qkv::cli
