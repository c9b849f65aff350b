// Positions of all parts of a still picture, in pixels: panels in a grid, cells, labels, colour bar.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

struct Box {
  int x = 0, y = 0, width = 0, height = 0;
};

/// One head.
struct Panel {
  Index layer = 0;
  Index head = 0;
  std::string name;
  Box cells;
  bool has_row_labels = false;  // panels of a grid share labels: the first of each row of panels has them
  bool has_key_labels = false;  // and each panel with no panel below it
};

/// A label on an axis: its position, and its text (visible, in UTF-8).
struct Tick {
  Index position = 0;
  std::string text;
};

struct Axis {
  Index count = 0;      // positions
  int cell = 1;         // pixels per position, or per block of `pool` positions
  Index pool = 1;       // positions in one cell
  int text_size = 18;   // pixels of the labels' font
  bool upward = false;  // labels are rotated to read upward
  int gutter = 0;       // pixels that the labels take beside the panel
  std::vector<Tick> ticks;

  Index num_cells() const { return (count + pool - 1) / pool; }
  int length() const { return static_cast<int>(num_cells()) * cell; }
  /// Middle of a position, in pixels from the panel's edge.
  int centre(Index position) const { return static_cast<int>(position / pool) * cell + cell / 2; }
};

struct Layout {
  int width = 0, height = 0;
  Axis rows, columns;
  std::vector<Panel> panels;
  Box bar;
  bool has_nan = false, has_zero = false;
  float top = 1;  // weight of the last colour
};

/// Pixels that text in a font of this size takes along its line.
using TextWidth = std::function<int(std::string_view visible, int size)>;

inline constexpr int kMargin = 24;
inline constexpr int kGap = 28;         // between panels
inline constexpr int kLineHeight = 26;  // of a line of large text
inline constexpr int kSmallText = 9;    // pixels of the font; a monospaced one advances by about 0.6 of it
inline constexpr int kLargeText = 18;
inline constexpr int kLabelDistance = 8;  // between a panel and its labels
inline constexpr int kBarWidth = 20;
inline constexpr std::size_t kTitleChars = 100;  // a longer title ends in an ellipsis

/// Chosen layers and heads, checked: throws OptionError for one that the map does not have.
std::vector<Panel> choose_panels(const AttentionMap& map, const MapOptions& options);

/// All weights of one head.
std::span<const float> weights_of(const AttentionMap& map, const Panel& panel);

Layout lay_out(const AttentionMap& map, const MapOptions& options, const TextWidth& text_width);

}  // namespace qkv::inline v0::view
