// UTF-8 is decoded by hand: what the library shows must not depend on a locale. Source: The Unicode Standard, table 3-7.
#include "core/escape.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kMaxShown = 120;

struct Character {
  std::uint32_t code = 0;
  std::size_t length = 0;  // bytes; 0: not UTF-8
};

// One character at the front of `text`, which is not empty. Overlong forms, surrogates and codes past U+10FFFF are not UTF-8.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  std::uint32_t code = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, length};
}

// Characters that move the cursor, reorder what is around them or cannot be seen.
bool is_unsafe(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || code == 0x61C || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF ||
         (code >= 0xE0000 && code <= 0xE007F);
}

std::string hexadecimal(const char* format, std::uint32_t code) {
  std::array<char, 16> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, code);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string shown = "\"";
  while (!text.empty()) {
    const Character c = first_character(text);
    const std::size_t length = c.length == 0 ? 1 : c.length;
    if (shown.size() + length > kMaxShown) {
      shown += "...";
      break;
    }
    if (c.length == 0) {
      shown += hexadecimal("\\x%02x", static_cast<unsigned char>(text[0]));
    } else if (c.code == '"' || c.code == '\\') {
      shown += std::string("\\") + text[0];
    } else if (c.code == '\n') {
      shown += "\\n";
    } else if (is_unsafe(c.code)) {
      shown += c.code < 0x80 ? hexadecimal("\\x%02x", c.code) : hexadecimal("\\u{%x}", c.code);
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return shown + '"';
}

}  // namespace qkv::inline v0
