// The still picture itself, drawn onto a canvas of any format.
#pragma once

#include <string_view>
#include <vector>

#include "view/layout.h"

namespace qkv::inline v0::view {

/// An entry of the picture's palette: 0 to 239 are the colour map, then these.
using Paint = std::uint8_t;
inline constexpr Paint kPaper = 240, kInk = 241, kFaintInk = 242, kLine = 243, kNan = 244, kInkOnDark = 245,
                       kZero = 246;
inline constexpr int kPaletteSize = 247;

/// kLight: of every format; SVG holds both.
std::array<Rgb, kPaletteSize> palette(Theme theme = Theme::kLight);

enum class Anchor { kStart, kMiddle, kEnd };

/// One line of text. (x, y) is on the line that halves its capitals; the anchor says where along it.
struct Label {
  int x = 0, y = 0;
  std::string_view text;  // visible, in UTF-8
  Anchor anchor = Anchor::kStart;
  int size = kLargeText;  // of the font
  Paint paint = kInk;
  bool upward = false;
};

class Canvas {
 public:
  Canvas() = default;
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;
  virtual ~Canvas() = default;

  virtual void fill(const Box& box, Paint paint) = 0;
  virtual void text(const Label& label) = 0;
  /// The cells of one panel.
  virtual void cells(const Panel& panel) = 0;
};

/// The palette entry of a cell, for the largest of its weights; kZero when all are exactly 0, as those of masked keys;
/// NaN when all of them are.
Paint cell_paint(const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel,
    Index row, Index column);

/// The cells of a panel, without what is around them.
struct Raster {
  int width = 0, height = 0;
  std::vector<Paint> pixels;  // [height, width]
};

Raster raster_cells(const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel);

void draw(Canvas& canvas, const AttentionMap& map, const MapOptions& options, const Layout& layout);

}  // namespace qkv::inline v0::view
