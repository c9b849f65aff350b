// Attention maps as 8-bit palette PNG: one panel for each head, labels, colour bar. Not: reading PNG.
// Text is a built-in 5 x 7 font of printable ASCII; other characters are written as U+XXXX.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv {
inline namespace v0 {
namespace view {

/// The file's bytes. Sequences too long for one pixel a weight show the largest weight of each block, and the picture says so.
QKV_API std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options = {});

/// Writes the file whole or not at all; throws IoError.
QKV_API void save_png(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {});

}  // namespace view
}  // namespace v0
}  // namespace qkv
