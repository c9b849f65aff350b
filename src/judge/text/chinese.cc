#include "judge/text/chinese.h"

#include <algorithm>
#include <map>

#include "judge/entry.h"

namespace qkv::judge {
namespace {

/// Sentences under "[id]", inline hints under "? id", the others under "hint NAME"; each once, in the file's order.
std::map<std::string, std::vector<std::string_view>> texts_of(const std::string& file) {
  std::map<std::string, std::vector<std::string_view>> all;
  std::string id;
  const auto add = [&](const std::string& key, std::string_view text) {
    std::vector<std::string_view>& texts = all[key];
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
  };
  for (std::string_view line : text_lines(file)) {
    if (const auto [name, text] = cut_hint(line); !text.empty()) {
      add("hint " + std::string(name), text);
    } else if (line.starts_with('[')) {
      id = line.substr(0, line.find(']') + 1);
      add(id, trimmed(line.substr(id.size())));
    } else if (line.starts_with("or ")) {
      add(id, line.substr(3));
    } else if (line.starts_with("? ")) {
      add("? " + id, line.substr(2));
    }
  }
  return all;
}

}  // namespace

void add_chinese(Sentences& to) {
  for (const char* file : kMistakes) {
    const auto english = texts_of(file), translated = texts_of(std::string("zh/") + file);
    for (const auto& [key, texts] : english) {
      const auto own = translated.find(key);
      for (std::size_t n = 0; own != translated.end() && n < std::min(texts.size(), own->second.size()); ++n)
        to.add(texts[n], own->second[n]);
    }
  }
  for (const char* file : {"zh/report.txt", "zh/tasks.txt"}) to.add_pairs(text_called(file));
}

const Sentences& chinese() {
  static const Sentences all = [] {
    Sentences sentences;
    add_chinese(sentences);
    return sentences;
  }();
  return all;
}

}  // namespace qkv::judge
