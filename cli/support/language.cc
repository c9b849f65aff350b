#include "support/language.h"

#include <cstdlib>
#include <span>
#include <string_view>

#include "core/embedded_file.h"
#include "support/text.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_chinese();
}

namespace qkv::cli {
namespace {

std::vector<void (*)(Sentences&)>& added() {
  static std::vector<void (*)(Sentences&)> all;
  return all;
}

const Sentences& chinese() {
  static const Sentences all = [] {
    Sentences sentences;
    for (const EmbeddedFile& file : embedded_chinese()) sentences.add_pairs(file.text);
    for (const auto add : added()) add(sentences);
    return sentences;
  }();
  return all;
}

bool wants_chinese() {
  for (const char* name : {"QKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return std::string_view(value).starts_with("zh") && terminal().unicode;
  }
  return false;
}

}  // namespace

bool add_chinese(void (*add)(Sentences&)) {
  added().push_back(add);
  return true;
}

const Sentences* language(int argc, const char* const* argv) {
  constexpr std::string_view kOption = "--lang";
  std::string_view lang;
  bool json = false;
  for (int n = 1; n < argc; ++n) {
    const std::string_view word = argv[n];
    json |= word == "--json";
    if (word == kOption && n + 1 < argc) lang = argv[n + 1];
    if (word.starts_with("--lang=")) lang = word.substr(kOption.size() + 1);
  }
  const bool is_auto = lang.empty() || lang == "auto";
  return lang == "zh" || (is_auto && !(json && lang.empty()) && wants_chinese()) ? &chinese() : nullptr;
}

}  // namespace qkv::cli
