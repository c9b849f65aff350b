// Pixels of palette entries and their PNG bytes. Not: text, layout.
#pragma once

#include <cstddef>
#include <vector>

#include "view/scene.h"

namespace qkv::inline v0::view {

struct Raster {
  Raster(int width_pixels, int height_pixels)
      : width(width_pixels),
        height(height_pixels),
        pixels(static_cast<std::size_t>(width_pixels) * static_cast<std::size_t>(height_pixels), kPaper) {}

  /// Clips to the picture.
  void fill(const Box& box, Paint paint);

  int width, height;
  std::vector<Paint> pixels;  // [height, width]
};

/// The cells of a panel, with their upper left corner at the origin.
void raster_cells(Raster& raster, const Box& origin, const AttentionMap& map, const MapOptions& options, const Layout& layout,
                  const Panel& panel);

std::vector<std::byte> encode_png(const Raster& raster);

}  // namespace qkv::inline v0::view
