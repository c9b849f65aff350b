// Attention maps as one HTML page that needs no network: the explorer's page (explorer.h) over a file of weights.
// Its content security policy forbids every request. Not: several texts or runs, weights from q and k.
#pragma once

#include <filesystem>
#include <string>

#include "qkv/state_dict.h"
#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// The explorer's file (docs/explorer-file.md, its full form) with every weight: F16 up to 262,144 of them, otherwise U8, whose error is
/// at most (sqrt(w * peak) + peak / 254) / 254 with the head's largest weight as its peak. The page states the largest error.
QKV_API StateDict explorer_of_map(const AttentionMap& map, const MapOptions& options = {});

/// The page of explorer_of_map.
QKV_API std::string render_html(const AttentionMap& map, const MapOptions& options = {});

/// Writes the file atomically; throws IoError.
QKV_API void save_html(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options = {});

}  // namespace qkv::inline v0::view
