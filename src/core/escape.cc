#include "core/escape.h"

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

}  // namespace

std::string escaped(std::string_view text) {
  std::string shown = "\"";
  while (!text.empty()) {
    const Utf8Character c = first_character(text);
    const std::size_t length = c.bytes == 0 ? 1 : c.bytes;
    if (shown.size() + length > kMaxShown) {
      shown += "...";
      break;
    }
    if (c.bytes == 0) {
      shown += formatted("\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (c.code == '"' || c.code == '\\') {
      shown += std::string("\\") + text[0];
    } else if (c.code == '\n') {
      shown += "\\n";
    } else if (is_invisible(c.code)) {
      shown += c.code < 0x80 ? formatted("\\x%02x", c.code) : formatted("\\u{%x}", c.code);
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return shown + '"';
}

}  // namespace qkv::inline v0
