// Labels and escapes. Not: fonts, layout. UTF-8: RFC 3629; control pictures and widths: Unicode 15 blocks.
#include "view/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

namespace qkv::inline v0::view {
namespace {

constexpr char32_t kVisibleSpace = 0x2423, kVisibleNewline = 0x21B5, kVisibleTab = 0x21E5, kEllipsis = 0x2026;

using Interval = std::pair<char32_t, char32_t>;

template <std::size_t N>
bool is_in(const std::array<Interval, N>& intervals, char32_t code) {
  return std::any_of(intervals.begin(), intervals.end(), [code](Interval i) { return i.first <= code && code <= i.second; });
}

// Controls, soft hyphen, Arabic letter mark, zero width and direction marks, separators, invisible operators, byte order
// mark, interlinear marks, tags: nothing is seen, or the order of what follows changes. U+FFFE and U+FFFF are no characters,
// and XML may not hold them.
constexpr std::array<Interval, 12> kInvisible{{{0x00, 0x1F},
                                               {0x7F, 0xA0},
                                               {0xAD, 0xAD},
                                               {0x61C, 0x61C},
                                               {0x180E, 0x180E},
                                               {0x2000, 0x200F},
                                               {0x2028, 0x202F},
                                               {0x205F, 0x206F},
                                               {0xFEFF, 0xFEFF},
                                               {0xFFF0, 0xFFFB},
                                               {0xFFFE, 0xFFFF},
                                               {0xE0000, 0xE0FFF}}};
constexpr std::array<Interval, 8> kCombining{{{0x300, 0x36F},
                                              {0x483, 0x489},
                                              {0x591, 0x5BD},
                                              {0x64B, 0x65F},
                                              {0x1AB0, 0x1AFF},
                                              {0x1DC0, 0x1DFF},
                                              {0x20D0, 0x20FF},
                                              {0xFE00, 0xFE2F}}};
constexpr std::array<Interval, 11> kWide{{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0x33FF},
                                          {0x3400, 0x4DBF},
                                          {0x4E00, 0xA4CF},
                                          {0xA960, 0xA97F},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0x1F300, 0x3FFFD}}};

std::string hexadecimal(std::uint32_t value, int digits) {
  std::string text;
  while (value != 0 || digits > 0) {
    text.insert(text.begin(), "0123456789ABCDEF"[value & 15]);
    value >>= 4;
    --digits;
  }
  return text;
}

std::string code_point_text(char32_t code) { return "U+" + hexadecimal(static_cast<std::uint32_t>(code), 4); }

/// Bytes of the sequence that starts with `lead`; 0 when no sequence starts with it.
int sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

std::string visible(const Character& c, bool mark_spaces) {
  if (!c.valid) return "\\x" + hexadecimal(static_cast<std::uint32_t>(c.code), 2);
  if (c.code != '\n' && c.code != '\t' && is_in(kInvisible, c.code)) return code_point_text(c.code);
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
  constexpr std::array<char32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};  // by sequence length; below it the form is overlong
  std::vector<Character> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const int length = sequence_length(lead);
    char32_t code = length <= 1 ? lead : lead & (0x7Fu >> length);
    bool valid = length > 0 && at + static_cast<std::size_t>(length) <= text.size();
    for (int i = 1; valid && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]);
      valid = (next & 0xC0) == 0x80;
      code = code << 6 | (next & 0x3F);
    }
    valid =
        valid && code >= kSmallest[static_cast<std::size_t>(length)] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    out.push_back(valid ? Character{code, true} : Character{lead, false});
    at += valid ? static_cast<std::size_t>(length) : 1;
  }
  return out;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
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
    switch (c.code) {
      case kVisibleSpace:
        out += '_';
        break;
      case kVisibleNewline:
        out += "\\n";
        break;
      case kVisibleTab:
        out += "\\t";
        break;
      case kEllipsis:
        out += "..";
        break;
      default:
        if (c.code < 0x7F) {
          out += static_cast<char>(c.code);
        } else {
          out += code_point_text(c.code);
        }
    }
  }
  return out;
}

int display_width(std::string_view visible_text) {
  int width = 0;
  for (const Character& c : decode_utf8(visible_text)) width += is_in(kCombining, c.code) ? 0 : is_in(kWide, c.code) ? 2 : 1;
  return width;
}

std::string escape_xml(std::string_view visible_text) {
  std::string out;
  for (const char c : visible_text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string significant(double value, int digits) {
  std::array<char, 40> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, digits).ptr};
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
    for (std::size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) out += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

std::string percent_text(float weight) {
  if (std::isnan(weight)) return "-";
  return weight == 0 ? "." : std::to_string(std::lround(100 * static_cast<double>(weight)));
}

}  // namespace qkv::inline v0::view
