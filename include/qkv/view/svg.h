// Attention maps as SVG 1.1: the layout of png.h with real text, and a tooltip (<title>) on every cell. No script, no link.
#pragma once

#include <filesystem>
#include <string>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// Up to this many cells are rectangles with tooltips; a larger picture embeds its cells as PNG and keeps text and lines as
/// vectors.
inline constexpr Index kMaxSvgCells = 8192;

QKV_API std::string render_svg(const AttentionMap& map, const MapOptions& options = {});

/// Writes the file atomically; throws IoError.
QKV_API void save_svg(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
