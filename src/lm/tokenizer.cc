// CharTokenizer: characters and their ids.
#include "qkv/lm/tokenizer.h"

#include <algorithm>

#include "core/utf8.h"
#include "lm/metadata.h"

namespace qkv::inline v0::lm {
namespace {

constexpr const char* kEntry = "tokenizer.characters";

/// Throws FormatError at the first byte that is not UTF-8.
std::vector<char32_t> decode_utf8(std::string_view text) {
  std::vector<char32_t> characters;
  characters.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character next = first_character(text.substr(at));
    if (next.bytes == 0) {
      throw FormatError("[decode_utf8] the text must be UTF-8: got byte 0x" +
                            hexadecimal(static_cast<unsigned char>(text[at]), 2) + " at byte offset " +
                            std::to_string(at),
          at);
    }
    characters.push_back(next.code);
    at += next.bytes;
  }
  return characters;
}

/// A character in quotes; control characters by number, so that an error stays on one line.
std::string quoted(char32_t character) {
  if (character < 0x20 || character == 0x7F) return "U+" + hexadecimal(character, 4);
  std::string text = "'";
  append_utf8(text, character);
  return text + "'";
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
  CharTokenizer tokenizer;
  tokenizer.characters_ = decode_utf8(read_text(metadata, kFunction, kEntry));
  const std::vector<char32_t>& characters = tokenizer.characters_;
  const bool ascending =
      std::adjacent_find(characters.begin(), characters.end(), std::greater_equal<>()) == characters.end();
  check<OptionError>(!characters.empty() && ascending, kFunction, kEntry,
      " must be characters in ascending order without repeats: got ", characters.size(), " characters");
  return tokenizer;
}

void CharTokenizer::save_metadata(std::map<std::string, std::string>& metadata) const {
  std::string text;
  for (const char32_t character : characters_) append_utf8(text, character);
  metadata[kEntry] = text;
}

std::string CharTokenizer::describe() const {
  constexpr std::size_t kMost = 60;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, characters_.size()); ++i)
    text += (i == 0 ? "" : " ") + quoted(characters_[i]);
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
        "every character must be in the model's vocabulary: got ", [&] { return quoted(characters[i]); },
        " at position ", i, "; it has ", [&] { return describe(); });
    ids[i] = found - characters_.begin();
  }
  return ids;
}

std::string CharTokenizer::decode(std::span<const Index> ids) const {
  std::string text;
  for (const Index id : ids) {
    check<OptionError>(
        id >= 0 && id < vocab_size(), "CharTokenizer::decode", "an id must be in [0, ", vocab_size(), "): got ", id);
    append_utf8(text, characters_[static_cast<std::size_t>(id)]);
  }
  return text;
}

}  // namespace qkv::inline v0::lm
