#include "view/print/typesetter.h"

#include <cmath>
#include <numbers>

namespace qkv::inline v0::view {
namespace {

// Those of svg.cc; fontconfig replaces what is not installed. Monospaced: columns of labels align, and 1 is not l.
constexpr const char* kFamilies = "DejaVu Sans Mono, Menlo, Consolas, monospace";
constexpr int kApart = 5;              // 1 / 5 of the font's size is kept free beside a text: neighbours do not touch
constexpr double kHalfCapital = 0.36;  // of the font's size: from the base line to the middle of a capital

struct FreeDescription {
  void operator()(PangoFontDescription* description) const { pango_font_description_free(description); }
};
struct FreeOptions {
  void operator()(cairo_font_options_t* options) const { cairo_font_options_destroy(options); }
};
struct FreeRuns {
  void operator()(PangoLayoutIter* runs) const { pango_layout_iter_free(runs); }
};

}  // namespace

Typesetter::Typesetter()
    : context_(pango_font_map_create_context(pango_cairo_font_map_get_default())),
      line_(pango_layout_new(context_.get())) {
  // Distances that do not depend on the pixels: PNG of every pixel ratio and PDF have one layout.
  const std::unique_ptr<cairo_font_options_t, FreeOptions> options(cairo_font_options_create());
  cairo_font_options_set_hint_metrics(options.get(), CAIRO_HINT_METRICS_OFF);
  cairo_font_options_set_hint_style(options.get(), CAIRO_HINT_STYLE_SLIGHT);
  cairo_font_options_set_antialias(options.get(), CAIRO_ANTIALIAS_GRAY);
  pango_cairo_context_set_font_options(context_.get(), options.get());
  pango_context_set_round_glyph_positions(context_.get(), FALSE);
  pango_layout_set_single_paragraph_mode(line_.get(), TRUE);
}

void Typesetter::set(std::string_view visible, int size) const {
  const std::unique_ptr<PangoFontDescription, FreeDescription> font(pango_font_description_new());
  pango_font_description_set_family_static(font.get(), kFamilies);
  pango_font_description_set_absolute_size(font.get(), static_cast<double>(size) * PANGO_SCALE);
  pango_layout_set_font_description(line_.get(), font.get());
  pango_layout_set_text(line_.get(), visible.data(), static_cast<int>(visible.size()));
}

int Typesetter::width(std::string_view visible, int size) const {
  set(visible, size);
  int units = 0;
  pango_layout_get_size(line_.get(), &units, nullptr);
  return (units + PANGO_SCALE - 1) / PANGO_SCALE;
}

TextWidth Typesetter::text_width() const {
  return [this](std::string_view visible, int size) { return width(visible, size) + size / kApart; };
}

void Typesetter::draw(cairo_t* cairo, const Label& label) const {
  cairo_save(cairo);
  cairo_translate(cairo, label.x, label.y);
  if (label.upward) cairo_rotate(cairo, -std::numbers::pi / 2);
  set(label.text, label.size);
  pango_cairo_update_layout(cairo, line_.get());
  int units = 0;
  pango_layout_get_size(line_.get(), &units, nullptr);
  const double length = static_cast<double>(units) / PANGO_SCALE;
  const double back = label.anchor == Anchor::kStart ? 0 : label.anchor == Anchor::kMiddle ? length / 2 : length;
  const double base_line = std::round(kHalfCapital * label.size);  // on whole pixels, where it is sharp
  cairo_move_to(cairo, -back, base_line - static_cast<double>(pango_layout_get_baseline(line_.get())) / PANGO_SCALE);
  pango_cairo_show_layout(cairo, line_.get());
  cairo_restore(cairo);
}

void Typesetter::append_missing(std::string_view visible, std::vector<char32_t>& out) const {
  set(visible, kLargeText);
  if (pango_layout_get_unknown_glyphs_count(line_.get()) == 0) return;
  const std::unique_ptr<PangoLayoutIter, FreeRuns> runs(pango_layout_get_iter(line_.get()));
  do {
    const PangoLayoutRun* run = pango_layout_iter_get_run_readonly(runs.get());
    for (int n = 0; run != nullptr && n < run->glyphs->num_glyphs; ++n) {
      const PangoGlyph glyph = run->glyphs->glyphs[n].glyph;
      if (glyph != PANGO_GLYPH_INVALID_INPUT && (glyph & PANGO_GLYPH_UNKNOWN_FLAG) != 0) {
        out.push_back(glyph & ~PANGO_GLYPH_UNKNOWN_FLAG);
      }
    }
  } while (pango_layout_iter_next_run(runs.get()));
}

}  // namespace qkv::inline v0::view
