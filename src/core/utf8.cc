#include "core/utf8.h"

#include <array>

namespace qkv::inline v0 {

Utf8Character first_character(std::string_view text) {
  constexpr std::array<char32_t, 5> kSmallest = {
      0, 0, 0x80, 0x800, 0x10000};  // by length; below it the form is overlong
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t code = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, length};
}

void append_utf8(std::string& out, char32_t code) {
  const int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes of six bits behind the first
  constexpr std::array<char32_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[static_cast<std::size_t>(tail)] | code >> (6 * tail));
  for (int n = tail - 1; n >= 0; --n) out += static_cast<char>(0x80 | (code >> (6 * n) & 0x3F));
}

bool is_within(std::span<const char32_t> ends, char32_t code) {
  for (std::size_t n = 0; n < ends.size(); n += 2) {
    if (ends[n] <= code && code <= ends[n + 1]) return true;
  }
  return false;
}

bool is_invisible(char32_t code) {
  constexpr char32_t kEnds[] = {0, 0x1F, 0x7F, 0xA0, 0xAD, 0xAD, 0x61C, 0x61C, 0x180E, 0x180E, 0x2000, 0x200F, 0x2028,
      0x202F, 0x205F, 0x206F, 0xFEFF, 0xFEFF, 0xFFF0, 0xFFFB, 0xFFFE, 0xFFFF, 0xE0000, 0xE0FFF};
  return is_within(kEnds, code);
}

std::string hexadecimal(std::uint32_t value, int digits) {
  std::string text;
  for (; value != 0 || digits > 0; value >>= 4, --digits) text.insert(text.begin(), "0123456789ABCDEF"[value & 15]);
  return text;
}

}  // namespace qkv::inline v0
