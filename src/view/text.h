// Tokens as labels: hostile or invisible text becomes visible, and is escaped for each format.
#pragma once

#include <climits>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// One decoded character: a code point, or a byte that is not part of valid UTF-8 (then `valid` is false).
struct Character {
  char32_t code = 0;
  bool valid = true;
};

std::vector<Character> decode_utf8(std::string_view text);

/// The text with every character visible on one line: space as U+2423, line feed as U+21B5, tab as U+21E5, other
/// control characters, direction marks and invisible characters as U+XXXX, bytes that are not UTF-8 as \xNN, the empty
/// text as two quotes. At most `max_characters`, the last then an ellipsis. No control characters, so no terminal
/// escape sequences. An ellipsis also ends what would take more than `max_columns` of a terminal.
std::string visible_label(std::string_view text, std::size_t max_characters, int max_columns = INT_MAX);

/// A title on one line: visible_label, but spaces stay.
std::string visible_line(std::string_view text, std::size_t max_characters);

/// A visible label in printable ASCII: space as _, line feed as \n, tab as \t, other characters as U+XXXX.
std::string ascii_label(std::string_view visible);

/// Columns of visible text in a terminal: 2 for East Asian wide characters and pictographs, 0 for combining marks.
int display_width(std::string_view visible);

/// For XML text and attribute values.
std::string escape_xml(std::string_view visible);

/// At most `digits` significant digits, the same in every locale: "12.5", "1e-07".
std::string significant(double value, int digits);

/// "12.34 %", "NaN".
std::string exact_percent(float weight);

/// "rrggbb".
std::string hex_digits(Rgb colour);

std::string encode_base64(std::string_view bytes);

/// Percent as an integer: "12"; "." for exactly 0, "0" for what rounds to 0, "-" for NaN.
std::string percent_text(float weight);

}  // namespace qkv::inline v0::view
