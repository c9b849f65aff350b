// Attention maps as text for a terminal, and as a table of percentages. Not: asking the terminal or the environment anything:
// whether colours may be used, and how wide the terminal is, the caller says.
#pragma once

#include <string>

#include "qkv/view/heatmap.h"

namespace qkv {
inline namespace v0 {
namespace view {

struct TerminalOptions {
  MapOptions map{};
  bool colour = true;          // false: plain characters, no escape sequence (NO_COLOR, a pipe, a file)
  bool unicode = true;         // false: ASCII only, in labels too
  int columns = 80;            // width of the terminal
  Theme theme = Theme::kDark;  // kLight suits a terminal with a light background
};

/// The heads side by side as far as they fit. With colour: cells with percent numbers when those fit, else blocks, else half
/// blocks (two rows a line), else the largest weight of each block of cells. Without: numbers when they fit, else a ramp of
/// characters.
QKV_API std::string render_terminal(const AttentionMap& map, const TerminalOptions& options = {});

/// Weights in percent, rounded to integers: row i is query i, column j key j. Nothing is left out, however wide that is.
QKV_API std::string render_table(const AttentionMap& map, const MapOptions& options = {});

}  // namespace view
}  // namespace v0
}  // namespace qkv
