#include "map/maps.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <utility>

#include "core/escape.h"
#include "qkv/view/fonts.h"
#include "qkv/view/html.h"
#include "qkv/view/pdf.h"
#include "qkv/view/svg.h"
#include "support/command.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr std::size_t kNamed = 4;  // more are counted

/// Debian's smallest package with the character, as far as scripts say; "" where they say nothing.
const char* font_package(const view::MissingCharacter& missing) {
  if (missing.script == "unknown") return "";
  constexpr std::array<std::string_view, 5> kEastAsian{"han", "hiragana", "katakana", "hangul", "bopomofo"};
  if (std::ranges::find(kEastAsian, missing.script) != kEastAsian.end()) return "fonts-wqy-microhei";
  const bool is_emoji = missing.script == "common" && missing.code >= 0x1F000;
  return is_emoji ? "fonts-noto-color-emoji" : "fonts-noto-core";
}

/// One line, once for each run of the tool.
void warn_of_missing(const std::vector<view::MissingCharacter>& missing, const std::string& path) {
  static bool has_warned = false;
  if (missing.empty() || std::exchange(has_warned, true)) return;
  std::vector<std::string> names;
  std::set<std::string> packages;
  for (const view::MissingCharacter& one : missing) {
    if (const std::string package = font_package(one); !package.empty()) packages.insert(package);
    if (names.size() == kNamed) continue;
    names.push_back(fmt::format("{} (U+{:04X}, {})", one.text, static_cast<std::uint32_t>(one.code), one.script));
  }
  const std::string more = missing.size() > kNamed ? fmt::format(" and {} more", missing.size() - kNamed) : "";
  const std::string advice = packages.empty() ? "" : fmt::format(" (Debian: apt-get install {})", fmt::join(packages, " "));
  const std::string text =
      fmt::format("qkv: no installed font has {}{}: {} shows boxes{}", fmt::join(names, ", "), more, path, advice);
  std::fputs((one_line(text) + "\n").c_str(), stderr);
}

}  // namespace

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

void add_map_pixels(CLI::App& app, MapPixels& pixels) {
  app.add_option("--pixel-ratio", pixels.ratio,
                 "Pixels of a .png per unit, 1 to 8: 2 for dense screens, 3 for print (default 1)")
      ->type_name("X");
}

view::PixelOptions map_pixels(const MapPixels& pixels, const std::vector<std::string>& paths) {
  if (!pixels.ratio) return {};
  if (!(*pixels.ratio >= 1 && *pixels.ratio <= 8)) {
    throw UsageError(fmt::format("--pixel-ratio must be in 1 .. 8: got {}", *pixels.ratio));
  }
  if (std::ranges::none_of(paths, [](const std::string& path) { return ending(path) == ".png"; })) {
    throw UsageError("--pixel-ratio is for .png: there is none here (.svg, .pdf and .html are as sharp as what shows them)");
  }
  return {.pixel_ratio = *pixels.ratio};
}

void expect_map(Outputs& outputs, std::string_view option, const std::string& path, const std::vector<std::string>& endings) {
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
