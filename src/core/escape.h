// Text from files made safe to show.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "qkv/export.h"

namespace qkv::inline v0 {

/// `"text"` in double quotes: control characters, invalid UTF-8 and characters that reorder or hide text become \n,
/// \x1b or \u{202e}; what is longer than 120 bytes is cut and ends in `...`. So a hostile name cannot drive a terminal
/// or flood a message.
QKV_API std::string escaped(std::string_view text);
/// The text without quotes, whole, on one line: line ends become spaces.
QKV_API std::string one_line(std::string_view text);
/// How many columns of a terminal it takes: two for each Han character.
QKV_API std::size_t columns_of(std::string_view text);
/// Broken at spaces and between Han characters, not before closing marks, so that no line is longer than `columns`,
/// every line after `indent` spaces.
QKV_API std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns);

}  // namespace qkv::inline v0
