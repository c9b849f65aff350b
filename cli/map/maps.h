// Attention maps as the commands draw them: into files by ending, or onto the terminal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view/pictures.h"
#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {

inline const std::vector<std::string> kMapEndings = {".png", ".svg", ".pdf", ".html"};

/// Colours, and the pixels of a .png.
struct MapStyle {
  std::string layers, heads;  ///< "0,2"; empty: all
  std::string range, scale;   ///< empty: unit, sqrt
  std::optional<double> pixel_ratio;
  std::optional<Index> columns;

  void add_to(Options& add);
  view::MapOptions map() const;
  /// UsageError when the ratio is not one, or none of `paths` is a .png.
  view::PixelOptions pixels(const std::vector<std::string>& paths) const;
};

/// Outputs::expect of a picture; UsageError where this build cannot draw it.
void expect_map(Outputs& outputs, std::string_view option, const std::string& path,
    const std::vector<std::string>& endings = kMapEndings);

/// Adds the picture that the ending of `path` names. The first .png or .pdf with characters that no installed font has
/// warns of them on standard error, by name.
void add_map(Outputs& outputs, const std::string& path, const view::AttentionMap& map,
    const view::MapOptions& options = {}, const view::PixelOptions& pixels = {});

}  // namespace qkv::cli
