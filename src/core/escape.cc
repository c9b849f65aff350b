#include "core/escape.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "core/utf8.h"

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kMaxShown = 120;

std::string formatted(const char* format, std::uint32_t code) {
  std::array<char, 16> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, code);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

/// The text that shows the character at the front of `text`, which is removed.
std::string next_shown(std::string_view& text) {
  const Utf8Character c = first_character(text);
  const std::string_view own = text.substr(0, c.bytes == 0 ? 1 : c.bytes);
  text.remove_prefix(own.size());
  if (c.bytes == 0) return formatted("\\x%02x", static_cast<unsigned char>(own[0]));
  if (c.code == '\n') return "\\n";
  if (is_invisible(c.code)) return c.code < 0x80 ? formatted("\\x%02x", c.code) : formatted("\\u{%x}", c.code);
  return std::string(own);
}

/// East Asian wide characters: Han, kana, their punctuation, full-width forms.
bool is_wide(char32_t code) {
  constexpr std::array<char32_t, 8> kWide{0x2E80, 0xA4CF, 0xAC00, 0xD7A3, 0xF900, 0xFAFF, 0xFE30, 0xFFEF};
  return is_within(kWide, code);
}

/// The bytes at the front of a text between which no line ends.
std::size_t unbroken(std::string_view text) {
  constexpr std::u32string_view kOpening = U"（《“「【", kClosing = U"，。、；：？！）》”」】";
  std::size_t end = 0;
  bool wide = false, opening = false;
  while (end < text.size() && text[end] != ' ') {
    const Utf8Character c = first_character(text.substr(end));
    const bool closing = kClosing.find(c.code) != std::u32string_view::npos;
    if (end > 0 && (wide || is_wide(c.code)) && !opening && !closing) break;
    wide = is_wide(c.code), opening = kOpening.find(c.code) != std::u32string_view::npos;
    end += std::max<std::size_t>(c.bytes, 1);
  }
  return end;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string shown = "\"";
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(first_character(text).bytes, 1);
    if (shown.size() + length > kMaxShown) {
      shown += "...";
      break;
    }
    if (text[0] == '"' || text[0] == '\\') shown += '\\';
    shown += next_shown(text);
  }
  return shown + '"';
}

std::string one_line(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    if (text[0] == '\n' || text[0] == '\r' || text[0] == '\t') {
      shown += ' ';
      text.remove_prefix(1);
    } else {
      shown += next_shown(text);
    }
  }
  while (shown.ends_with(' ')) shown.pop_back();
  return shown;
}

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Utf8Character c = first_character(text);
    columns += is_wide(c.code) ? 2 : 1;
    text.remove_prefix(std::max<std::size_t>(c.bytes, 1));
  }
  return columns;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string result(indent, ' ');
  std::size_t used = indent;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, unbroken(text));
    const std::size_t width = columns_of(piece);
    text.remove_prefix(piece.size());
    const bool blank = text.starts_with(' ');
    if (used > indent && used + width > columns) {
      if (result.ends_with(' ')) result.pop_back();
      result += "\n" + std::string(indent, ' ');
      used = indent;
    }
    result += piece;
    used += width;
    if (!blank) continue;
    text.remove_prefix(1);
    if (used == indent || text.empty()) continue;
    result += ' ';
    ++used;
  }
  return result;
}

}  // namespace qkv::inline v0
