// A bitmap font of printable ASCII, drawn for this library: 5 x 8 dots, the last row for descenders. Not: Unicode, hinting.
#pragma once

namespace qkv::inline v0::view {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 8;
inline constexpr int kGlyphAscent = 7;   // rows above the base line, by which a line of capitals is centred
inline constexpr int kGlyphAdvance = 6;  // one empty column follows each glyph

/// Whether the dot is set. A character outside printable ASCII is a box.
bool glyph_dot(char character, int column, int row);

}  // namespace qkv::inline v0::view
