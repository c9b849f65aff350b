// UTF-8, decoded by hand: what the library reads and shows must not depend on a locale. Source: The Unicode Standard,
// table 3-7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "qkv/export.h"

namespace qkv::inline v0 {

struct Utf8Character {
  char32_t code = 0;
  std::size_t bytes = 0;  ///< 0: not UTF-8
};

/// The first character of a text that is not empty. Overlong forms, surrogates and codes past U+10FFFF are not UTF-8.
QKV_API Utf8Character first_character(std::string_view text);

QKV_API void append_utf8(std::string& out, char32_t code);

/// Whether it lies between two neighbours of ends[0] .. ends[1], ends[2] .. ends[3], ..., both included.
QKV_API bool is_within(std::span<const char32_t> ends, char32_t code);

/// Whether it draws nothing, moves the cursor or changes the order of what follows: controls, spaces but U+0020,
/// soft hyphen, zero width and direction marks, separators, invisible operators, byte order mark, interlinear marks,
/// tags; and U+FFFE and U+FFFF, which are no characters, and which XML may not hold.
QKV_API bool is_invisible(char32_t code);

/// "1F600", at least `digits` digits.
QKV_API std::string hexadecimal(std::uint32_t value, int digits);

}  // namespace qkv::inline v0
