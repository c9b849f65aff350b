// CharTokenizer: one id per character (Unicode code point), ids in the order of the code points. Not: sub-words.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/export.h"
#include "qkv/types.h"

namespace qkv::inline v0::lm {

/// Texts are UTF-8. Other bytes (a stray or missing continuation byte, an overlong form, a surrogate, a value above
/// U+10FFFF) is a FormatError with the offset of its first byte.
class QKV_API CharTokenizer {
 public:
  /// The characters that occur in the text. Throws OptionError for an empty text.
  static CharTokenizer from_text(std::string_view text);
  /// Reads what save_metadata wrote. Throws OptionError when it is missing or not a vocabulary.
  static CharTokenizer from_metadata(const std::map<std::string, std::string>& metadata);
  void save_metadata(std::map<std::string, std::string>& metadata) const;

  Index vocab_size() const { return static_cast<Index>(characters_.size()); }
  /// Ascending; a character's id is its index.
  const std::vector<char32_t>& characters() const { return characters_; }
  /// The characters for a reader: 'a' 'b' 'c' (at most 60, then the number of the others).
  std::string describe() const;

  /// Throws OptionError that names an unknown character, its position (in characters, from 0) and the known ones.
  std::vector<Index> encode(std::string_view text) const;
  /// Throws OptionError for an id outside [0, vocab_size).
  std::string decode(std::span<const Index> ids) const;

 private:
  std::vector<char32_t> characters_;
};

}  // namespace qkv::inline v0::lm
