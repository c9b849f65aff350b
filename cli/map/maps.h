// Attention maps as the commands draw them: into files by ending, or onto the terminal. Not: the drawing (qkv/view).
#pragma once

#include <string>
#include <vector>

#include "qkv/view/heatmap.h"
#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {

inline const std::vector<std::string> kMapEndings = {".png", ".svg", ".html"};

struct MapStyle {
  std::string layers, heads;  ///< "0,2"; empty: all
  std::string range, scale;   ///< empty: unit, sqrt
};
void add_map_style(CLI::App& app, MapStyle& style);
view::MapOptions map_style(const MapStyle& style);

/// Adds the picture that the ending of `path` names.
void add_map(Outputs& outputs, const std::string& path, const view::AttentionMap& map, const view::MapOptions& options = {});

}  // namespace qkv::cli
