#include "view/raster.h"

#include <algorithm>

#include "view/png_file.h"

namespace qkv::inline v0::view {

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

std::vector<std::byte> encode_png(const Raster& raster) {
  const std::array<Rgb, kPaletteSize> colours = palette();
  const auto width = static_cast<std::size_t>(raster.width);
  const auto fill_row = [&](int y, std::span<std::uint8_t> row) {
    std::copy_n(
        raster.pixels.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(y) * width), width, row.begin());
  };
  return encode_png(PngImage{raster.width, raster.height, colours, 0, fill_row});
}

}  // namespace qkv::inline v0::view
