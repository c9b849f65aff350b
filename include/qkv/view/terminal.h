// Attention maps as text for a terminal, and as a table of percentages. Not: querying the terminal or the environment: the
// caller says whether colours may be used and how wide the terminal is.
#pragma once

#include <string>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

struct TerminalOptions {
  MapOptions map{};
  bool colour = true;          // false: plain characters, no escape sequences (NO_COLOR, a pipe, a file)
  bool unicode = true;         // false: ASCII only, in labels too
  int columns = 80;            // width of the terminal
  Theme theme = Theme::kDark;  // kLight suits a terminal with a light background
};

/// As many heads side by side as fit. With colour: cells with percentages if they fit, otherwise blocks, otherwise half blocks
/// (two rows per line), otherwise the largest weight of each block of cells. Without colour: percentages if they fit, otherwise
/// a ramp of characters.
QKV_API std::string render_terminal(const AttentionMap& map, const TerminalOptions& options = {});

/// Weights in percent, rounded to integers: row i is query i, column j key j. Nothing is cut off, however wide the table is.
QKV_API std::string render_table(const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
