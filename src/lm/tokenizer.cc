// CharTokenizer and its UTF-8. Unicode 15, section 3.9, table 3-7 (well-formed byte sequences).
#include "qkv/lm/tokenizer.h"

#include <algorithm>

#include "core/check.h"

namespace qkv::inline v0::lm {
namespace {

constexpr const char* kEntry = "tokenizer.characters";

/// Bytes of the sequence that `first` opens; 0 when no sequence begins with it.
int sequence_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  if (first >= 0xF0 && first < 0xF5) return 4;
  return 0;
}

/// The second byte's range excludes overlong forms, surrogates and values above U+10FFFF (table 3-7).
bool second_byte_fits(unsigned char first, unsigned char second) {
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

[[noreturn]] void throw_not_utf8(std::string_view text, std::size_t at) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(text[at]);
  throw FormatError("[decode_utf8] the text must be UTF-8: got byte 0x" + std::string{kDigits[byte >> 4], kDigits[byte & 15]} +
                        " at byte offset " + std::to_string(at),
                    at);
}

}  // namespace

std::vector<char32_t> decode_utf8(std::string_view text) {
  std::vector<char32_t> characters;
  characters.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const int length = sequence_length(first);
    if (length == 0) throw_not_utf8(text, at);
    char32_t character = length == 1 ? first : first & (0xFFU >> (length + 1));
    for (int i = 1; i < length; ++i) {
      const std::size_t place = at + static_cast<std::size_t>(i);
      if (place >= text.size()) throw_not_utf8(text, at);
      const auto byte = static_cast<unsigned char>(text[place]);
      if ((byte & 0xC0) != 0x80 || (i == 1 && !second_byte_fits(first, byte))) throw_not_utf8(text, at);
      character = character << 6 | (byte & 0x3FU);
    }
    characters.push_back(character);
    at += static_cast<std::size_t>(length);
  }
  return characters;
}

std::string encode_utf8(char32_t character) {
  const auto tail = [character](int shift) { return static_cast<char>(0x80 | ((character >> shift) & 0x3F)); };
  if (character < 0x80) return {static_cast<char>(character)};
  if (character < 0x800) return {static_cast<char>(0xC0 | character >> 6), tail(0)};
  if (character < 0x10000) return {static_cast<char>(0xE0 | character >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | character >> 18), tail(12), tail(6), tail(0)};
}

namespace {

/// A character in quotes; control characters by number, so that an error stays on one line.
std::string quoted(char32_t character) {
  if (character >= 0x20 && character != 0x7F) return "'" + encode_utf8(character) + "'";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("U+00") + kDigits[character >> 4 & 15] + kDigits[character & 15];
}

}  // namespace

CharTokenizer CharTokenizer::from_text(std::string_view text) {
  check<OptionError>(!text.empty(), "CharTokenizer::from_text", "the text must have at least one character: got none");
  CharTokenizer tokenizer;
  tokenizer.characters_ = decode_utf8(text);
  std::vector<char32_t>& characters = tokenizer.characters_;
  std::sort(characters.begin(), characters.end());
  characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
  characters.shrink_to_fit();
  return tokenizer;
}

CharTokenizer CharTokenizer::from_metadata(const std::map<std::string, std::string>& metadata) {
  constexpr const char* kFunction = "CharTokenizer::from_metadata";
  const auto entry = metadata.find(kEntry);
  check<OptionError>(entry != metadata.end(), kFunction, "the file must have the metadata entry ", kEntry, ": got none");
  CharTokenizer tokenizer;
  tokenizer.characters_ = decode_utf8(entry->second);
  const std::vector<char32_t>& characters = tokenizer.characters_;
  const bool ascending = std::adjacent_find(characters.begin(), characters.end(), std::greater_equal<>()) == characters.end();
  check<OptionError>(!characters.empty() && ascending, kFunction, kEntry,
                     " must be characters in ascending order without repeats: got ", characters.size(), " characters");
  return tokenizer;
}

void CharTokenizer::save_metadata(std::map<std::string, std::string>& metadata) const {
  std::string text;
  for (const char32_t character : characters_) text += encode_utf8(character);
  metadata[kEntry] = text;
}

std::string CharTokenizer::describe() const {
  constexpr std::size_t kMost = 60;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, characters_.size()); ++i) text += (i == 0 ? "" : " ") + quoted(characters_[i]);
  if (characters_.size() > kMost) text += " and " + std::to_string(characters_.size() - kMost) + " more";
  return text;
}

std::vector<Index> CharTokenizer::encode(std::string_view text) const {
  const std::vector<char32_t> characters = decode_utf8(text);
  std::vector<Index> ids(characters.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = std::lower_bound(characters_.begin(), characters_.end(), characters[i]);
    check<OptionError>(
        found != characters_.end() && *found == characters[i], "CharTokenizer::encode",
        "every character must be in the model's vocabulary: got ", [&] { return quoted(characters[i]); }, " at position ", i,
        "; it has ", [&] { return describe(); });
    ids[i] = found - characters_.begin();
  }
  return ids;
}

std::string CharTokenizer::decode(std::span<const Index> ids) const {
  std::string text;
  for (const Index id : ids) {
    check<OptionError>(id >= 0 && id < vocab_size(), "CharTokenizer::decode", "an id must be in [0, ", vocab_size(), "): got ",
                       id);
    text += encode_utf8(characters_[static_cast<std::size_t>(id)]);
  }
  return text;
}

}  // namespace qkv::inline v0::lm
