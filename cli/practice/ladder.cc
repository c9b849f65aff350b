#include "practice/ladder.h"

#include <algorithm>
#include <array>

#include "core/embedded_file.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_exercises();
}

namespace qkv::cli {
namespace {

std::optional<std::string_view> file_called(std::string_view name) {
  for (const EmbeddedFile& file : embedded_exercises()) {
    if (file.name == name) return file.text;
  }
  return {};
}

}  // namespace

std::string_view language_name(Language language) {
  constexpr std::array<std::string_view, 3> kNames = {"numpy", "torch", "cpp"};
  return kNames[static_cast<std::size_t>(language)];
}

std::string file_of(std::string_view task) {
  std::string name(task);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string_view given_in_cpp() { return file_called("cpp/given.h").value(); }

std::optional<std::string_view> exercise(std::string_view task, Language language) {
  const std::string ending = language == Language::kCpp ? ".cc" : ".py";
  return file_called(std::string(language_name(language)) + "/" + file_of(task) + ending);
}

std::vector<Language> languages_of(std::string_view task) {
  std::vector<Language> found;
  for (const Language language : {Language::kTorch, Language::kNumpy, Language::kCpp}) {
    if (exercise(task, language)) found.push_back(language);
  }
  return found;
}

std::string signature(std::string_view task, std::string_view name) {
  const std::string head(name);
  for (const Language language : {Language::kNumpy, Language::kTorch}) {
    const std::string text = "\n" + std::string(exercise(task, language).value_or(""));
    std::size_t at = text.find("\ndef " + head + "(");
    std::string receiver;
    if (at == std::string::npos && (at = text.find("\nclass " + head + "(")) != std::string::npos) {
      at = text.find("def __init__(", at);
      receiver = "self, ";
    }
    if (at == std::string::npos) continue;
    const std::size_t open = text.find('(', at) + 1 + receiver.size(), close = text.find("):", at);
    return head + "(" + text.substr(open, close - open) + ")";
  }
  return {};
}

}  // namespace qkv::cli
