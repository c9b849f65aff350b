// Sentences in another language: a program writes English, and each sentence is looked up where it is shown. Not: the
// sentences, which are texts beside what says them (zh/*.txt).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/export.h"

namespace qkv::inline v0 {

/// English sentences with their translations. `{}` and `{name}` stand for any text, which the translation repeats, in
/// any order or not at all; `{of}`, `{of 2}` for a list, "q, k and v", whose parts are translated too; `{said}` for one
/// that is translated as a whole, if at all: a message of a program's own has commas that make no list.
class QKV_API Sentences {
 public:
  /// Of two equal English sentences the first counts.
  void add(std::string_view english, std::string_view translated);
  /// Two lines for each: `= ENGLISH`, then the translation. Empty lines and those that start with # are skipped.
  void add_pairs(std::string_view text);
  /// Of one line, whose blanks at both ends stay; itself where nothing was added for it.
  std::string said(std::string_view english) const;

 private:
  struct Pattern {
    std::vector<std::string> between, holes;  ///< text before, between and behind the holes; their names
    std::string translated;
    std::size_t length = 0;  ///< of the text between: where several patterns match, the most exact counts
  };
  using Found = std::map<std::string, std::string, std::less<>>;

  bool matches(const Pattern& pattern, std::string_view text, Found& found) const;
  std::string list(std::string_view text) const;

  std::map<std::string, std::string, std::less<>> whole_;
  std::vector<Pattern> patterns_;
};

/// While it lives, said() of this thread uses these sentences; nullptr: English.
class QKV_API Speaking {
 public:
  explicit Speaking(const Sentences* sentences) noexcept;
  ~Speaking();
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;

 private:
  const Sentences* before_;
};

QKV_API std::string said(std::string_view english);

}  // namespace qkv::inline v0
