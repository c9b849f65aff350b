// Pixels of palette entries: the cells of a panel.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "view/scene.h"

namespace qkv::inline v0::view {

/// The cells of a panel, without what is around them.
struct Raster {
  int width = 0, height = 0;
  std::vector<Paint> pixels;  // [height, width]
};

Raster raster_cells(const AttentionMap& map, const MapOptions& options, const Layout& layout, const Panel& panel);

/// An 8-bit palette PNG.
std::vector<std::byte> encode_png(const Raster& raster);

}  // namespace qkv::inline v0::view
