#include "core/sentences.h"

#include <algorithm>
#include <utility>

namespace qkv::inline v0 {
namespace {

thread_local const Sentences* speaking = nullptr;

/// Text and marks in turn, text first and last; an unnamed mark is named by its number.
std::pair<std::vector<std::string>, std::vector<std::string>> cut_at_marks(std::string_view text) {
  std::vector<std::string> between{""}, names;
  int unnamed = 0;
  while (!text.empty()) {
    const std::size_t open = std::min(text.find('{'), text.size()), close = text.find('}', open);
    between.back() += text.substr(0, close == std::string_view::npos ? text.size() : open);
    if (close == std::string_view::npos) break;
    const std::string_view name = text.substr(open + 1, close - open - 1);
    names.push_back(name.empty() ? std::to_string(unnamed++) : std::string(name));
    between.emplace_back();
    text.remove_prefix(close + 1);
  }
  return {between, names};
}

}  // namespace

void Sentences::add(std::string_view english, std::string_view translated) {
  auto [between, holes] = cut_at_marks(english);
  if (holes.empty()) {
    whole_.emplace(english, translated);
  } else {
    std::size_t length = 0;
    for (const std::string& part : between) length += part.size();
    const auto at =
        std::find_if(patterns_.begin(), patterns_.end(), [length](const Pattern& one) { return one.length < length; });
    patterns_.insert(at, {std::move(between), std::move(holes), std::string(translated), length});
  }
}

void Sentences::add_pairs(std::string_view text) {
  std::string_view english;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with("= ")) {
      english = line.substr(2);
    } else if (!line.empty() && !line.starts_with('#')) {
      add(english, line);
    }
  }
}

/// Each mark is as short as what follows allows.
bool Sentences::matches(const Pattern& pattern, std::string_view text, Found& found) const {
  if (!text.starts_with(pattern.between.front())) return false;
  text.remove_prefix(pattern.between.front().size());
  found.clear();
  for (std::size_t n = 0; n < pattern.holes.size(); ++n) {
    const std::string& next = pattern.between[n + 1];
    const bool last = n + 1 == pattern.holes.size();
    const std::size_t end = !last                  ? text.find(next)
                            : text.ends_with(next) ? text.size() - next.size()
                                                   : std::string_view::npos;
    if (end == std::string_view::npos) return false;
    const std::string_view part = text.substr(0, end);
    const std::string& name = pattern.holes[n];
    found[name] = name.starts_with("of") ? list(part) : name == "said" ? said(part) : std::string(part);
    text.remove_prefix(end + next.size());
  }
  return true;
}

std::string Sentences::list(std::string_view text) const {
  if (std::string whole = said(text); whole != text) return whole;
  for (const auto& [mark, own] : {std::pair(", ", "、"), {" and ", " 和 "}}) {
    const std::size_t at = text.find(mark);
    if (at != std::string_view::npos)
      return list(text.substr(0, at)) + own + list(text.substr(at + std::string_view(mark).size()));
  }
  return std::string(text);
}

std::string Sentences::said(std::string_view english) const {
  const std::size_t begin = std::min(english.find_first_not_of(' '), english.size()),
                    end = english.find_last_not_of(' ') + 1;
  if (begin == english.size() || english.find('\n') != std::string_view::npos) return std::string(english);
  const std::string_view text = english.substr(begin, end - begin);
  const auto shown = [&](std::string_view translated) {
    const bool closed = translated.ends_with("：");  // a wide mark needs no blank behind it
    return std::string(english.substr(0, begin)).append(translated).append(closed ? "" : english.substr(end));
  };
  if (const auto whole = whole_.find(text); whole != whole_.end()) return shown(whole->second);
  Found found;
  for (const Pattern& pattern : patterns_) {
    if (!matches(pattern, text, found)) continue;
    const auto [between, names] = cut_at_marks(pattern.translated);
    std::string out = between.front();
    for (std::size_t n = 0; n < names.size(); ++n) {
      const auto part = found.find(names[n]);
      out += (part == found.end() ? "{" + names[n] + "}" : part->second) + between[n + 1];
    }
    return shown(out);
  }
  return std::string(english);
}

Speaking::Speaking(const Sentences* sentences) noexcept : before_(std::exchange(speaking, sentences)) {}
Speaking::~Speaking() { speaking = before_; }

std::string said(std::string_view english) {
  return speaking == nullptr ? std::string(english) : speaking->said(english);
}

}  // namespace qkv::inline v0
