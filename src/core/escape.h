// Text from files made safe to show. Not: HTML or JSON escaping.
#pragma once

#include <string>
#include <string_view>

#include "qkv/export.h"

namespace qkv::inline v0 {

/// `"text"` in double quotes: control characters, invalid UTF-8 and characters that reorder or hide text become \n, \x1b or
/// \u{202e}; what is longer than 120 bytes is cut and ends in `...`. So a hostile name cannot drive a terminal or flood a
/// message.
QKV_API std::string escaped(std::string_view text);

}  // namespace qkv::inline v0
