// Pictures of an attention map: SVG, one HTML page, PNG, PDF, text for a terminal. Bytes and texts: qkv/io/file.h
// writes them. Not: what is drawn (heatmap.h), several texts or runs, weights from q and k (explorer.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// Up to this many cells are rectangles with tooltips; a larger picture embeds its cells as PNG and keeps text and
/// lines as vectors.
inline constexpr Index kMaxSvgCells = 8192;

/// SVG 1.1: the layout of PNG with real text, and a tooltip (<title>) on every cell. No script, no link.
QKV_API std::string render_svg(const AttentionMap& map, const MapOptions& options = {});

/// One page that needs no network: the explorer's over every weight (explorer_of_map). Its content security policy
/// forbids every request.
QKV_API std::string render_html(const AttentionMap& map, const MapOptions& options = {});

/// How many pixels a picture has. The file says its dots per inch, so that every pixel ratio prints at the same size.
struct PixelOptions {
  double pixel_ratio = 1;  // 1 to 8; 1: 96 dots per inch; 2: dense screens; 3 or 4: print
};

/// One panel per head, labels, colour bar; text of any script, anti-aliased. A sequence too long for one cell per
/// weight shows the largest weight of each block, and says so. Throws OptionError for a pixel ratio outside its range,
/// or when a side would exceed 32,767 pixels or all of them 268,435,456; UnsupportedError without Pango.
QKV_API std::vector<std::byte> render_png(
    const AttentionMap& map, const MapOptions& options = {}, const PixelOptions& pixels = {});

/// The same with lines and text as vectors and its fonts inside. A unit of the layout is 1/96 inch, as in PNG and SVG;
/// a page longer than PDF's 200 inches is scaled down. The cells are an image that readers leave sharp. Throws
/// UnsupportedError without Pango.
QKV_API std::vector<std::byte> render_pdf(const AttentionMap& map, const MapOptions& options = {});

/// Whether this build has Pango (CMake: QKV_TEXT=pango) or finds it (loaded), which PNG and PDF need. SVG, HTML and
/// terminals leave fonts to whoever shows them.
QKV_API bool draws_text();

/// The way out without it.
inline constexpr std::string_view kWithoutText =
    "write .svg or .html; in Python qkv.plot draws both with matplotlib (pip install matplotlib); or build with "
    "-DQKV_TEXT=pango (Debian: libpango1.0-dev); a wheel for x86_64 needs Pango itself (Debian: libpangocairo-1.0-0)";

/// A character that no installed font has: PNG and PDF show a box with its number.
struct MissingCharacter {
  char32_t code = 0;
  std::string text;  ///< the character itself, in UTF-8

  friend bool operator==(const MissingCharacter&, const MissingCharacter&) = default;
};

/// Those of the picture that `options` describe, each once, in the order in which the picture shows them. Empty without
/// Pango.
QKV_API std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions& options = {});

/// The caller says whether colours may be used and how wide the terminal is; neither it nor the environment is asked.
struct TerminalOptions {
  MapOptions map{};
  bool colour = true;          // false: plain characters, no escape sequences (NO_COLOR, a pipe, a file)
  bool unicode = true;         // false: ASCII only, in labels too
  int columns = 80;            // width of the terminal
  Theme theme = Theme::kDark;  // kLight suits a terminal with a light background
};

/// As many heads side by side as fit. With colour: cells with percentages if they fit, otherwise blocks, otherwise half
/// blocks (two rows per line), otherwise the largest weight of each block of cells. Without colour: percentages if they
/// fit, otherwise a ramp of characters.
QKV_API std::string render_terminal(const AttentionMap& map, const TerminalOptions& options = {});

}  // namespace qkv::inline v0::view
