// Attention maps as one HTML page that needs no network: choose layer and head, hover for values, light and dark.
// Its content security policy forbids every request. Not: comparing several texts or runs.
#pragma once

#include <filesystem>
#include <string>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// How the page stores a weight, relative to the map's largest weight (peak). The page states its largest error.
enum class HtmlPrecision {
  kAuto,     // kFloat16 up to 262,144 weights, otherwise kSqrtByte
  kFloat16,  // 2 bytes; error at most peak / 4096
  kSqrtByte  // 1 byte, round(254 * sqrt(w / peak)), 255 is NaN; error at most (sqrt(w * peak) + peak / 1016) / 254
};

struct HtmlOptions {
  MapOptions map{};  // numbers are not drawn into cells: hovering shows them
  HtmlPrecision precision = HtmlPrecision::kAuto;
};

QKV_API std::string render_html(const AttentionMap& map, const HtmlOptions& options = {});

/// Writes the file atomically; throws IoError.
QKV_API void save_html(const std::filesystem::path& path, const AttentionMap& map, const HtmlOptions& options = {});

}  // namespace qkv::inline v0::view
