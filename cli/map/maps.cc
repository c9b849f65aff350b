#include "map/maps.h"

#include <CLI/CLI.hpp>

#include "core/escape.h"
#include "qkv/view/html.h"
#include "qkv/view/png.h"
#include "qkv/view/svg.h"
#include "support/command.h"

namespace qkv::cli {

void add_map_style(CLI::App& app, MapStyle& style) {
  app.add_option("--layers", style.layers, "Which layers, such as 0,1 (default all)")->type_name("N,N,...");
  app.add_option("--heads", style.heads, "Which heads of each (default all)")->type_name("N,N,...");
  app.add_option("--range", style.range, "Weight of the last colour: unit (1, default) or max (the largest)")->type_name("HOW");
  app.add_option("--scale", style.scale, "Colour scale: sqrt (shows small weights, default) or linear")->type_name("HOW");
}

view::MapOptions map_style(const MapStyle& style) {
  view::MapOptions options;
  if (!style.layers.empty()) options.layers = parse_indices("--layers", style.layers);
  if (!style.heads.empty()) options.heads = parse_indices("--heads", style.heads);
  if (!style.range.empty() && style.range != "unit" && style.range != "max") {
    throw UsageError("--range must be unit or max: got " + escaped(style.range));
  }
  if (!style.scale.empty() && style.scale != "sqrt" && style.scale != "linear") {
    throw UsageError("--scale must be sqrt or linear: got " + escaped(style.scale));
  }
  options.range = style.range == "max" ? view::ValueRange::kMax : view::ValueRange::kUnit;
  options.scale = style.scale == "linear" ? view::ColourScale::kLinear : view::ColourScale::kSqrt;
  return options;
}

void add_map(Outputs& outputs, const std::string& path, const view::AttentionMap& map, const view::MapOptions& options) {
  const std::string kind = ending(path);
  if (kind == ".png") outputs.add(path, view::render_png(map, options));
  if (kind == ".svg") outputs.add(path, view::render_svg(map, options));
  if (kind == ".html") outputs.add(path, view::render_html(map, {.map = options}));
}

}  // namespace qkv::cli
