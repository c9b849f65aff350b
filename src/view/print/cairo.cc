// PNG and PDF: the scene drawn with Cairo, as pixels and as vectors; and the characters that no font has for it.
#include <cairo-pdf.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "qkv/error.h"
#include "qkv/view/pictures.h"
#include "view/png_file.h"
#include "view/print/typesetter.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

struct DestroySurface {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
};
using Surface = std::unique_ptr<cairo_surface_t, DestroySurface>;

/// Throws what Cairo complains of: std::bad_alloc, or UnsupportedError in the name of `function`.
void check_cairo(const char* function, cairo_status_t status) {
  if (status == CAIRO_STATUS_SUCCESS) return;
  if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
  throw UnsupportedError(
      "[" + std::string(function) + "] " + "Cairo cannot draw this picture: " + cairo_status_to_string(status));
}

class CairoCanvas final : public Canvas {
 public:
  /// `unit`: how long a unit of the layout is on the surface.
  CairoCanvas(cairo_surface_t* surface, double unit, const AttentionMap& map, const MapOptions& options,
      const Layout& layout, const Typesetter& typesetter)
      : map_(map), options_(options), layout_(layout), typesetter_(typesetter), cairo_(cairo_create(surface)) {
    cairo_scale(cairo_.get(), unit, unit);
    cairo_set_antialias(cairo_.get(), CAIRO_ANTIALIAS_NONE);  // of boxes; text has its own
  }

  void fill(const Box& box, Paint paint) override {
    set_colour(paint);
    cairo_rectangle(cairo_.get(), box.x, box.y, box.width, box.height);
    cairo_fill(cairo_.get());
  }

  void text(const Label& label) override {
    set_colour(label.paint);
    typesetter_.draw(cairo_.get(), label);
  }

  void cells(const Panel& panel) override {
    const Raster raster = raster_cells(map_, options_, layout_, panel);
    const Surface image(cairo_image_surface_create(CAIRO_FORMAT_RGB24, raster.width, raster.height));
    check_cairo("CairoCanvas::cells", cairo_surface_status(image.get()));
    unsigned char* const rows = cairo_image_surface_get_data(image.get());
    const int stride = cairo_image_surface_get_stride(image.get());
    auto pixel = raster.pixels.begin();
    for (int y = 0; y < raster.height; ++y) {
      auto* const row = reinterpret_cast<std::uint32_t*>(rows + static_cast<std::ptrdiff_t>(y) * stride);
      for (int x = 0; x < raster.width; ++x) {
        const Rgb c = colours_[*pixel++];
        row[x] = static_cast<std::uint32_t>(c.red) << 16 | static_cast<std::uint32_t>(c.green) << 8 | c.blue;
      }
    }
    cairo_surface_mark_dirty(image.get());
    cairo_save(cairo_.get());
    cairo_set_source_surface(cairo_.get(), image.get(), panel.cells.x, panel.cells.y);
    cairo_pattern_set_filter(cairo_get_source(cairo_.get()), CAIRO_FILTER_NEAREST);
    cairo_rectangle(cairo_.get(), panel.cells.x, panel.cells.y, raster.width, raster.height);
    cairo_fill(cairo_.get());
    cairo_restore(cairo_.get());
  }

  /// The whole picture; throws as check_cairo.
  void picture(const char* function) {
    draw(*this, map_, options_, layout_);
    check_cairo(function, cairo_status(cairo_.get()));
  }

 private:
  struct Destroy {
    void operator()(cairo_t* cairo) const { cairo_destroy(cairo); }
  };
  void set_colour(Paint paint) {
    const Rgb c = colours_[paint];
    cairo_set_source_rgb(cairo_.get(), c.red / 255.0, c.green / 255.0, c.blue / 255.0);
  }

  const AttentionMap& map_;
  const MapOptions& options_;
  const Layout& layout_;
  const Typesetter& typesetter_;
  std::array<Rgb, kPaletteSize> colours_ = palette();
  std::unique_ptr<cairo_t, Destroy> cairo_;
};

/// Width and height in pixels.
std::pair<int, int> checked_size(const Layout& layout, double ratio) {
  constexpr double kLongestSide = 32767;    // of Cairo's image surfaces
  constexpr double kMostPixels = 1u << 28;  // 1 GiB of them
  const double width = std::ceil(layout.width * ratio), height = std::ceil(layout.height * ratio);
  if (width > kLongestSide || height > kLongestSide || width * height > kMostPixels) {
    throw OptionError(
        "[render_png] the picture must have sides of at most 32767 pixels, and at most 268435456 of them: got " +
        significant(width, 9) + " x " + significant(height, 9) +
        "; take a smaller pixel_ratio or fewer layers or heads, or write .svg or .pdf");
  }
  return {static_cast<int>(width), static_cast<int>(height)};
}

struct Written {
  std::vector<std::byte> bytes;
  bool torn = false;  // memory was out: Cairo does not always say so at the end
};

/// Called by Cairo with the next bytes of a PDF; no exception may pass through it.
cairo_status_t append(void* written, const unsigned char* data, unsigned length) noexcept {
  auto& out = *static_cast<Written*>(written);
  try {
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    out.bytes.insert(out.bytes.end(), begin, begin + length);
    return CAIRO_STATUS_SUCCESS;
  } catch (const std::bad_alloc&) {
    out.torn = true;
    return CAIRO_STATUS_NO_MEMORY;
  }
}

/// Draws nothing: it reads what would be written.
class MissingCanvas final : public Canvas {
 public:
  explicit MissingCanvas(const Typesetter& typesetter) : typesetter_(typesetter) {}
  void fill(const Box&, Paint) override {}
  void text(const Label& label) override { typesetter_.append_missing(label.text, missing); }
  void cells(const Panel&) override {}
  std::vector<char32_t> missing;

 private:
  const Typesetter& typesetter_;
};

}  // namespace

bool draws_text() { return true; }

std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options, const PixelOptions& pixels) {
  constexpr double kMostRatio = 8, kUnitsPerMetre = 96 / 0.0254;
  check_map(map);
  const double ratio = pixels.pixel_ratio;
  if (!(ratio >= 1 && ratio <= kMostRatio)) {
    throw OptionError("[render_png] pixel_ratio must be in 1 .. 8: got " + significant(ratio, 6));
  }
  const Typesetter typesetter;
  const Layout layout = lay_out(map, options, typesetter.text_width());
  const auto [width, height] = checked_size(layout, ratio);
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height));
  check_cairo("render_png", cairo_surface_status(surface.get()));
  CairoCanvas canvas(surface.get(), ratio, map, options, layout, typesetter);
  canvas.fill({0, 0, width, height}, kPaper);  // the last column and row too, when a pixel ratio does not fill them
  canvas.picture("render_png");
  cairo_surface_flush(surface.get());

  const unsigned char* const rows = cairo_image_surface_get_data(surface.get());
  const int stride = cairo_image_surface_get_stride(surface.get());
  const auto fill_row = [&](int y, std::span<std::uint8_t> row) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(rows + static_cast<std::ptrdiff_t>(y) * stride);
    for (std::size_t n = 0; n < row.size(); ++n)
      row[n] = static_cast<std::uint8_t>(from[n / 3] >> (16 - 8 * (n % 3)) & 255);
  };
  return encode_png({width, height, {}, kUnitsPerMetre * ratio, fill_row});
}

std::vector<std::byte> render_pdf(const AttentionMap& map, const MapOptions& options) {
  constexpr double kPoint = 0.75;         // points of 1/72 inch in a unit of the layout
  constexpr double kLongestPage = 14400;  // points: PDF 32000-1, annex C.2
  check_map(map);
  const Typesetter typesetter;
  const Layout layout = lay_out(map, options, typesetter.text_width());
  const double unit = std::min(kPoint, kLongestPage / std::max(layout.width, layout.height));
  Written written;
  const Surface surface(
      cairo_pdf_surface_create_for_stream(&append, &written, unit * layout.width, unit * layout.height));
  check_cairo("render_pdf", cairo_surface_status(surface.get()));
  const std::string title = map.title.empty() ? "attention map" : picture_title(map.title);
  cairo_pdf_surface_set_metadata(surface.get(), CAIRO_PDF_METADATA_TITLE, title.c_str());
  cairo_pdf_surface_set_metadata(
      surface.get(), CAIRO_PDF_METADATA_CREATE_DATE, "");  // the same picture: the same bytes
  CairoCanvas(surface.get(), unit, map, options, layout, typesetter).picture("render_pdf");
  cairo_surface_finish(surface.get());
  if (written.torn) throw std::bad_alloc();
  check_cairo("render_pdf", cairo_surface_status(surface.get()));
  return std::move(written.bytes);
}

std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const Typesetter typesetter;
  MissingCanvas canvas(typesetter);
  draw(canvas, map, options, lay_out(map, options, typesetter.text_width()));
  std::vector<MissingCharacter> out;
  for (const char32_t code : canvas.missing) {
    if (std::ranges::find(out, code, &MissingCharacter::code) != out.end()) continue;
    out.push_back({code, {}});
    append_utf8(out.back().text, code);
  }
  return out;
}

}  // namespace qkv::inline v0::view
