// Attention maps as 8-bit palette PNG: one panel per head, labels, colour bar. Not: reading PNG.
// Text uses a built-in 5 x 7 font of printable ASCII; other characters are written as U+XXXX.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// The file's bytes. A sequence too long for one pixel per weight shows the largest weight of each block, and says so.
QKV_API std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options = {});

/// Writes the file atomically; throws IoError.
QKV_API void save_png(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
