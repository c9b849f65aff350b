// Attention maps as PDF, one page: the picture of png.h with lines and text as vectors and its fonts inside. Not: several pages;
// builds without Pango (fonts.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// The file's bytes. A unit of the layout is 1/96 inch, as in PNG and SVG; a page longer than PDF's 200 inches is scaled down.
/// The cells are an image that readers leave sharp. Throws UnsupportedError without Pango.
QKV_API std::vector<std::byte> render_pdf(const AttentionMap& map, const MapOptions& options = {});

/// Writes the file atomically; throws IoError, and what render_pdf throws.
QKV_API void save_pdf(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
