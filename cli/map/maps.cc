#include "map/maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/escape.h"
#include "qkv/view/pictures.h"
#include "support/command.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr std::size_t kNamed = 4;  // more are counted

/// One line, once for each run of the tool.
void warn_of_missing(const std::vector<view::MissingCharacter>& missing, const std::string& path) {
  static bool has_warned = false;
  if (missing.empty() || std::exchange(has_warned, true)) return;
  std::string names;
  for (std::size_t n = 0; n < std::min(kNamed, missing.size()); ++n)
    names +=
        fmt::format("{}{} (U+{:04X})", n > 0 ? ", " : "", missing[n].text, static_cast<std::uint32_t>(missing[n].code));
  const std::string more = missing.size() > kNamed ? fmt::format(" and {} more", missing.size() - kNamed) : "";
  const std::string text = fmt::format(
      "qkv: no installed font has {}{}: {} shows boxes (Debian: apt-get install fonts-noto-core fonts-wqy-microhei "
      "fonts-noto-color-emoji)",
      names, more, path);
  std::fputs((one_line(text) + "\n").c_str(), stderr);
}

}  // namespace

void MapStyle::add_to(Options& add) {
  add("--layers N,N,...", &layers, "Which layers, such as 0,1 (default all)");
  add("--heads N,N,...", &heads, "Which heads of each (default all)");
  add("--range HOW", &range, "Weight of the last colour: unit (1, default) or max (the largest drawn)",
      {.among = {"unit", "max"}});
  add("--scale HOW", &scale, "Colour scale: sqrt (shows small weights, default) or linear",
      {.among = {"sqrt", "linear"}});
  add("--columns N", &columns, "Heads beside one another in a .png, .svg or .pdf (default: as square as they fit)");
  add("--pixel-ratio X", &pixel_ratio,
      "Pixels of a .png per unit, 1 to 8: 2 for dense screens, 3 for print (default 1)");
}

view::MapOptions MapStyle::map() const {
  view::MapOptions options;
  if (!layers.empty()) options.layers = parse_indices("--layers", layers);
  if (!heads.empty()) options.heads = parse_indices("--heads", heads);
  if (columns && *columns < 1) throw UsageError(fmt::format("--columns must be 1 or more: got {}", *columns));
  options.columns = columns.value_or(0);
  options.range = range == "max" ? view::ValueRange::kMax : view::ValueRange::kUnit;
  options.scale = scale == "linear" ? view::ColourScale::kLinear : view::ColourScale::kSqrt;
  return options;
}

view::PixelOptions MapStyle::pixels(const std::vector<std::string>& paths) const {
  const auto drawn = [&](auto... kinds) {
    return std::ranges::any_of(paths, [&](const std::string& path) { return ((ending(path) == kinds) || ...); });
  };
  if (columns && !drawn(".png", ".svg", ".pdf"))
    throw UsageError("--columns is for .png, .svg and .pdf: there is none here");
  if (!pixel_ratio) return {};
  if (!(*pixel_ratio >= 1 && *pixel_ratio <= 8))
    throw UsageError(fmt::format("--pixel-ratio must be in 1 .. 8: got {}", *pixel_ratio));
  if (!drawn(".png"))
    throw UsageError(
        "--pixel-ratio is for .png: there is none here (.svg, .pdf and .html are as sharp as what shows them)");
  return {.pixel_ratio = *pixel_ratio};
}

void expect_map(
    Outputs& outputs, std::string_view option, const std::string& path, const std::vector<std::string>& endings) {
  outputs.expect(option, path, endings);
  const std::string kind = ending(path);
  if ((kind == ".png" || kind == ".pdf") && !view::draws_text()) {
    throw UsageError(
        fmt::format("{} {}: PNG and PDF are not drawn without Pango: {}", option, escaped(path), view::kWithoutText));
  }
}

void add_map(Outputs& outputs, const std::string& path, const view::AttentionMap& map, const view::MapOptions& options,
    const view::PixelOptions& pixels) {
  const std::string kind = ending(path);
  if (kind == ".png") outputs.add(path, view::render_png(map, options, pixels));
  if (kind == ".pdf") outputs.add(path, view::render_pdf(map, options));
  if (kind == ".png" || kind == ".pdf") warn_of_missing(view::missing_characters(map, options), path);
  if (kind == ".svg") outputs.add(path, view::render_svg(map, options));
  if (kind == ".html") outputs.add(path, view::render_html(map, options));
}

}  // namespace qkv::cli
