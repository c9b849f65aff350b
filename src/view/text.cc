// Labels and escapes. Widths: Unicode 15 blocks.
#include "view/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace qkv::inline v0::view {
namespace {

constexpr char32_t kVisibleSpace = 0x2423, kVisibleNewline = 0x21B5, kVisibleTab = 0x21E5, kEllipsis = 0x2026;

constexpr char32_t kCombining[] = {0x300, 0x36F, 0x483, 0x489, 0x591, 0x5BD, 0x64B, 0x65F, 0x1AB0, 0x1AFF, 0x1DC0,
    0x1DFF, 0x20D0, 0x20FF, 0xFE00, 0xFE2F};
constexpr char32_t kWide[] = {0x1100, 0x115F, 0x2E80, 0x303E, 0x3041, 0x4DBF, 0x4E00, 0xA4CF, 0xA960, 0xA97F, 0xAC00,
    0xD7A3, 0xF900, 0xFAFF, 0xFE30, 0xFE6F, 0xFF00, 0xFF60, 0x1F300, 0x3FFFD};

std::string code_point_text(char32_t code) { return "U+" + hexadecimal(static_cast<std::uint32_t>(code), 4); }

std::string visible(const Character& c, bool mark_spaces) {
  if (!c.valid) return "\\x" + hexadecimal(static_cast<std::uint32_t>(c.code), 2);
  if (c.code != '\n' && c.code != '\t' && is_invisible(c.code)) return code_point_text(c.code);
  std::string out;
  append_utf8(out, c.code == '\n'                 ? kVisibleNewline
                   : c.code == '\t'               ? kVisibleTab
                   : c.code == ' ' && mark_spaces ? kVisibleSpace
                                                  : c.code);
  return out;
}

std::string visible(std::string_view text, std::size_t max_characters, int max_columns, bool mark_spaces) {
  std::string out;
  std::size_t count = 0, fitting = 0;  // bytes of `out` that leave room for the ellipsis
  int columns = 0;
  const std::vector<Character> all = decode_utf8(text);
  for (const Character& c : all) {
    const std::string next = visible(c, mark_spaces);
    columns += display_width(next);
    const bool is_too_long = ++count == max_characters && all.size() > max_characters;
    if (is_too_long || columns > max_columns) {
      if (columns > max_columns) out.resize(fitting);
      append_utf8(out, kEllipsis);
      break;
    }
    out += next;
    if (columns < max_columns) fitting = out.size();
  }
  return out;
}

}  // namespace

std::vector<Character> decode_utf8(std::string_view text) {
  std::vector<Character> out;
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    const bool valid = next.bytes != 0;
    out.push_back({valid ? next.code : static_cast<unsigned char>(text[0]), valid});
    text.remove_prefix(valid ? next.bytes : 1);
  }
  return out;
}

std::string visible_label(std::string_view text, std::size_t max_characters, int max_columns) {
  return text.empty() ? "\"\"" : visible(text, max_characters, max_columns, true);
}

std::string visible_line(std::string_view text, std::size_t max_characters) {
  return visible(text, max_characters, INT_MAX, false);
}

std::string ascii_label(std::string_view visible_text) {
  std::string out;
  for (const Character& c : decode_utf8(visible_text)) {
    out += c.code == kVisibleSpace     ? "_"
           : c.code == kVisibleNewline ? "\\n"
           : c.code == kVisibleTab     ? "\\t"
           : c.code == kEllipsis       ? ".."
           : c.code < 0x7F             ? std::string(1, static_cast<char>(c.code))
                                       : code_point_text(c.code);
  }
  return out;
}

int display_width(std::string_view visible_text) {
  int width = 0;
  for (const Character& c : decode_utf8(visible_text))
    width += is_within(kCombining, c.code) ? 0 : is_within(kWide, c.code) ? 2 : 1;
  return width;
}

std::string escape_xml(std::string_view visible_text) {
  std::string out;
  for (const char c : visible_text) {
    const std::string_view entity = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '"'  ? "&quot;"
                                    : c == '\'' ? "&#39;"
                                                : "";
    entity.empty() ? out += c : out += entity;
  }
  return out;
}

std::string significant(double value, int digits) {
  std::array<char, 40> text;
  return {text.data(),
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, digits).ptr};
}

std::string exact_percent(float weight) {
  if (std::isnan(weight)) return "NaN";
  std::array<char, 64> text;  // the largest float has 41 digits in percent
  const double percent = 100 * static_cast<double>(weight);
  return std::string(text.data(),
             std::to_chars(text.data(), text.data() + text.size(), percent, std::chars_format::fixed, 2).ptr) +
         " %";
}

std::string hex_digits(Rgb colour) {
  return hexadecimal(colour.red, 2) + hexadecimal(colour.green, 2) + hexadecimal(colour.blue, 2);
}

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) out += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

std::string percent_text(float weight) {
  if (std::isnan(weight)) return "-";
  return weight == 0 ? "." : std::to_string(std::lround(100 * static_cast<double>(weight)));
}

}  // namespace qkv::inline v0::view
