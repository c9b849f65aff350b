// Attention maps as PNG: one panel per head, labels, colour bar; text of any script, anti-aliased. Not: reading PNG; vectors
// (pdf.h, svg.h); builds without Pango (fonts.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// How many pixels a picture has. The file says its dots per inch, so that every pixel ratio prints at the same size.
struct PixelOptions {
  double pixel_ratio = 1;  // 1 to 8; 1: 96 dots per inch; 2: dense screens; 3 or 4: print
};

/// The file's bytes. A sequence too long for one cell per weight shows the largest weight of each block, and says so. Throws
/// OptionError for a pixel ratio outside its range, or when a side would exceed 32,767 pixels or all of them 268,435,456;
/// UnsupportedError without Pango.
QKV_API std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options = {},
                                          const PixelOptions& pixels = {});

/// Writes the file atomically; throws IoError, and what render_png throws.
QKV_API void save_png(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {},
                      const PixelOptions& pixels = {});

}  // namespace qkv::inline v0::view
