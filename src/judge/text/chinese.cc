// Reads what zh/*.txt translate.
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "judge/entry.h"
#include "judge/report.h"

namespace qkv::judge {
namespace {

/// The texts of a file in their order: sentences of "[id]", what a task teaches of "teaches [id]", its probes' names of
/// "probe [id]", inline hints of "? [id]", the others of "hint NAME".
std::vector<std::pair<std::string, std::string_view>> texts_of(const std::string& file) {
  std::vector<std::pair<std::string, std::string_view>> all;
  std::string id;
  for (std::string_view line : text_lines(file)) {
    if (const auto [name, text] = cut_hint(line); !text.empty()) {
      all.emplace_back("hint " + std::string(name), text);
    } else if (line.starts_with('[')) {
      id = line.substr(0, line.find(']') + 1);
      all.emplace_back(id, trimmed(line.substr(id.size())));
    } else if (line.starts_with("or ") && line.find('|') == std::string_view::npos) {
      all.emplace_back(id, line.substr(3));
    } else if (line.starts_with("? ") || line.starts_with("teaches ") || line.starts_with("probe ")) {
      const std::string kind(line.substr(0, line.find(' ') + 1));
      all.emplace_back(kind + id, trimmed(line.substr(kind.size(), line.find('|') - kind.size())));
    }
  }
  return all;
}

}  // namespace

void add_chinese(Sentences& to) {
  std::set<std::string_view> known;  // what stands again is translated where it stands first
  const auto add_file = [&](const std::string& file) {
    std::map<std::string, std::deque<std::string_view>> translated;
    for (const auto& [key, text] : texts_of("zh/" + file)) translated[key].push_back(text);
    for (const auto& [key, text] : texts_of(file)) {
      std::deque<std::string_view>& own = translated[key];
      if (!known.insert(text).second || own.empty()) continue;
      to.add(text, own.front());
      own.pop_front();
    }
  };
  for (const char* file : kMistakes) add_file(file);
  add_file("tasks.txt");
  to.add_pairs(text_called("zh/report.txt"));
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
