// What the pictures made here and now (PNG, PDF) can write: Pango and the installed fonts, or nothing. SVG, HTML and terminals
// hold text and leave fonts to whoever shows them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// Whether this build has Pango (CMake: QKV_TEXT=pango). Without it render_png and render_pdf throw UnsupportedError.
QKV_API bool draws_text();

/// What to do then.
inline constexpr std::string_view kWithoutText =
    "write .svg or .html; in Python qkv.plot draws both with matplotlib (pip install 'qkv[plot]'); or build with "
    "-DQKV_TEXT=pango "
    "(Debian: libpango1.0-dev)";

/// A character that no installed font has: PNG and PDF show a box with its number.
struct MissingCharacter {
  char32_t code = 0;
  std::string text;    ///< the character itself, in UTF-8
  std::string script;  ///< Unicode's name in lower case: "han", "arabic", "common" (emoji and symbols)

  friend bool operator==(const MissingCharacter&, const MissingCharacter&) = default;
};

/// Those of the picture that `options` describe, each once, in the order in which the picture shows them. Empty without Pango.
QKV_API std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
