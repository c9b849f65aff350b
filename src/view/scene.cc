// Frames, labels, numbers and the colour bar around the cells.
#include "view/scene.h"

#include <algorithm>
#include <cmath>

#include "view/cells.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

void outline(Canvas& canvas, const Box& box) {
  canvas.fill({box.x - 1, box.y - 1, box.width + 2, 1}, kLine);
  canvas.fill({box.x - 1, box.y + box.height, box.width + 2, 1}, kLine);
  canvas.fill({box.x - 1, box.y, 1, box.height}, kLine);
  canvas.fill({box.x + box.width, box.y, 1, box.height}, kLine);
}

void draw_axes(Canvas& canvas, const Layout& layout, const Panel& panel) {
  const Box& box = panel.cells;
  const Axis &rows = layout.rows, &columns = layout.columns;
  if (panel.has_row_labels) {
    for (const Tick& tick : rows.ticks) {
      canvas.text({box.x - kLabelDistance, box.y + rows.centre(tick.position), tick.text, Anchor::kEnd, rows.text_size,
          kInk, false});
    }
    const int size = box.height < 3 * kLineHeight ? kSmallText : kLargeText;
    canvas.text({box.x - rows.gutter - kLineHeight / 2 - 2, box.y + box.height / 2, "query", Anchor::kMiddle, size,
        kFaintInk, true});
  }
  if (panel.has_key_labels) {
    const int below = box.y + box.height + kLabelDistance;
    for (const Tick& tick : columns.ticks) {
      const int x = box.x + columns.centre(tick.position);
      const int y = columns.upward ? below : below + 4 * columns.text_size / 9;
      canvas.text(
          {x, y, tick.text, columns.upward ? Anchor::kEnd : Anchor::kMiddle, columns.text_size, kInk, columns.upward});
    }
    const int caption = box.y + box.height + columns.gutter + kLineHeight / 2;
    canvas.text({box.x + box.width / 2, caption, "key", Anchor::kMiddle, kLargeText, kFaintInk, false});
  }
}

void draw_numbers(
    Canvas& canvas, const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel) {
  const int cell = std::min(layout.rows.cell, layout.columns.cell);
  const int size = std::clamp(3 * cell / 7, kSmallText, kLargeText);  // "100" takes three quarters of the cell
  if (options.numbers == CellNumbers::kNever || cell < 24 || layout.rows.pool > 1) return;
  const auto colours = palette();
  const View<const float, 4> weights = map.weights.view<4>();
  for (Index i = 0; i < map.q_len(); ++i) {
    for (Index j = 0; j < map.kv_len(); ++j) {
      const float w = weights(panel.layer, panel.head, i, j);
      if (w == 0) continue;
      const Paint under = cell_paint(map, options, layout, panel, i, j);
      const Paint paint = is_dark(colours[under]) ? kInkOnDark : kInk;
      const std::string number = percent_text(w);
      canvas.text({panel.cells.x + layout.columns.centre(j), panel.cells.y + layout.rows.centre(i), number,
          Anchor::kMiddle, size, paint, false});
    }
  }
}

void draw_bar(Canvas& canvas, const MapOptions& options, const Layout& layout) {
  const Box& bar = layout.bar;
  const auto height_of = [&](double share) {
    return bar.y + static_cast<int>(std::lround(
                       (1 - (options.scale == ColourScale::kSqrt ? std::sqrt(share) : share)) * (bar.height - 1)));
  };
  for (int y = 0; y < bar.height; ++y) {
    const double share = 1 - static_cast<double>(y) / (bar.height - 1);
    canvas.fill({bar.x, bar.y + y, bar.width, 1}, static_cast<Paint>(std::lround(share * (kNumColours - 1))));
  }
  outline(canvas, bar);
  const double top = static_cast<double>(layout.top);
  const int text_x = bar.x + bar.width + kLabelDistance;
  const auto tick = [&](double weight) {
    const std::string text = significant(100 * weight, 3) + "%";
    canvas.fill({bar.x + bar.width, height_of(weight / top), 4, 1}, kLine);
    canvas.text({text_x, height_of(weight / top), text, Anchor::kStart, kLargeText, kInk, false});
  };
  tick(0);
  tick(top);
  int above = height_of(1);
  for (int decade = 1; decade >= -5; --decade) {
    for (const double digit : {5.0, 2.5, 1.0}) {
      const double weight = digit * std::pow(10.0, decade - 1);
      if (weight >= top || height_of(weight / top) < above + kLineHeight ||
          height_of(weight / top) > height_of(0) - kLineHeight)
        continue;
      tick(weight);
      above = height_of(weight / top);
    }
  }
  canvas.text({bar.x, bar.y - kLineHeight, "weight", Anchor::kStart, kLargeText, kFaintInk, false});
  int y = bar.y + bar.height - bar.width / 2;
  const auto swatch = [&](Paint paint, std::string_view name) {
    const Box box{bar.x, y += kLineHeight, bar.width, bar.width};
    canvas.fill(box, paint);
    outline(canvas, box);
    canvas.text({text_x, box.y + box.height / 2, name, Anchor::kStart, kLargeText, kInk, false});
  };
  if (layout.has_zero) swatch(kZero, "= 0");
  if (layout.has_nan) swatch(kNan, "NaN");
}

}  // namespace

std::array<Rgb, kPaletteSize> palette(Theme theme) {
  const bool light = theme == Theme::kLight;
  std::array<Rgb, kPaletteSize> colours;
  std::copy_n(colour_map(theme).begin(), kNumColours, colours.begin());
  colours[kPaper] = light ? Rgb{255, 255, 255} : Rgb{22, 22, 28};
  colours[kInk] = light ? Rgb{28, 28, 34} : Rgb{236, 236, 241};
  colours[kFaintInk] = light ? Rgb{110, 112, 122} : Rgb{162, 162, 176};
  colours[kLine] = light ? Rgb{160, 162, 170} : Rgb{90, 92, 104};
  colours[kNan] = kNanColour;
  // Where the light map is dark, the dark one is light.
  colours[kInkOnDark] = light ? Rgb{255, 255, 255} : Rgb{22, 22, 28};
  colours[kZero] = light ? kZeroColour : Rgb{52, 52, 63};
  return colours;
}

Paint cell_paint(const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel,
    Index row, Index column) {
  const Index pool = layout.rows.pool;
  const float largest =
      largest_weight(map.weights.view<4>(), panel.layer, panel.head, row * pool, column * pool, pool, pool);
  if (largest == 0) return kZero;
  const int index = colour_index(largest, layout.top, options.scale);
  return index < 0 ? kNan : static_cast<Paint>(index);
}

Raster raster_cells(const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel) {
  Raster out{panel.cells.width, panel.cells.height, {}};
  const auto width = static_cast<std::size_t>(out.width);
  out.pixels.resize(width * static_cast<std::size_t>(out.height));
  auto row = out.pixels.begin();
  for (Index i = 0; i < layout.rows.num_cells(); ++i) {
    auto at = row;
    for (Index j = 0; j < layout.columns.num_cells(); ++j) {
      at = std::fill_n(at, layout.columns.cell, cell_paint(map, options, layout, panel, i, j));
    }
    for (int copies = 1; copies < layout.rows.cell; ++copies) at = std::copy_n(row, width, at);
    row = at;
  }
  return out;
}

void draw(Canvas& canvas, const AttentionMap& map, const MapOptions& options, const Layout& layout) {
  canvas.fill({0, 0, layout.width, layout.height}, kPaper);
  const std::string title = picture_title(map.title);
  if (!title.empty()) canvas.text({kMargin, kMargin + kLineHeight / 2, title, Anchor::kStart, kLargeText, kInk, false});
  for (const Panel& panel : layout.panels) {
    const Box& box = panel.cells;
    canvas.text({box.x, box.y - kLineHeight / 2, panel.name, Anchor::kStart, kLargeText, kInk, false});
    outline(canvas, box);
    draw_axes(canvas, layout, panel);
    if (map.q_len() == 0 || map.kv_len() == 0) {
      const std::string_view why = map.q_len() == 0 ? "no queries" : "no keys";
      canvas.text({box.x + box.width / 2, box.y + box.height / 2, why, Anchor::kMiddle, kSmallText, kFaintInk, false});
    } else {
      canvas.cells(panel);
      draw_numbers(canvas, map, options, layout, panel);
    }
  }
  draw_bar(canvas, options, layout);
  if (layout.rows.pool > 1) {
    const std::string side = std::to_string(layout.rows.pool);
    const std::string note = "each pixel: the largest of " + side + " x " + side + " weights";
    canvas.text({kMargin, layout.height - kMargin, note, Anchor::kStart, kLargeText, kFaintInk, false});
  }
}

}  // namespace qkv::inline v0::view
