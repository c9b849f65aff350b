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

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string result(indent, ' ');
  std::size_t used = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (used > indent && used + 1 + word.size() > columns) {
      result += "\n" + std::string(indent, ' ');
      used = indent;
    }
    if (used > indent) {
      result += ' ';
      ++used;
    }
    result += word;
    used += word.size();
  }
  return result;
}

}  // namespace qkv::inline v0
