// The scene as pixels. Not: the bytes of a file (png_file.cc).
#include "qkv/view/png.h"

#include <cmath>
#include <string>

#include "qkv/error.h"
#include "view/png_file.h"
#include "view/print/cairo_canvas.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

constexpr double kMostRatio = 8;
constexpr double kLongestSide = 32767;    // of Cairo's image surfaces
constexpr double kMostPixels = 1u << 28;  // 1 GiB of them
constexpr double kUnitsPerMetre = 96 / 0.0254;

int checked_size(const Layout& layout, double ratio, bool is_width) {
  const double width = std::ceil(layout.width * ratio), height = std::ceil(layout.height * ratio);
  if (width > kLongestSide || height > kLongestSide || width * height > kMostPixels) {
    throw OptionError("[render_png] the picture must have sides of at most 32767 pixels, and at most 268435456 of them: got " +
                      significant(width, 9) + " x " + significant(height, 9) +
                      "; take a smaller pixel_ratio or fewer layers or heads, or write .svg or .pdf");
  }
  return static_cast<int>(is_width ? width : height);
}

}  // namespace

std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options, const PixelOptions& pixels) {
  check_map(map);
  const double ratio = pixels.pixel_ratio;
  if (!(ratio >= 1 && ratio <= kMostRatio)) {
    throw OptionError("[render_png] pixel_ratio must be in 1 .. 8: got " + significant(ratio, 6));
  }
  const Typesetter typesetter;
  const Layout layout = lay_out(map, options, typesetter.text_width());
  const int width = checked_size(layout, ratio, true), height = checked_size(layout, ratio, false);
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height));
  check_cairo("render_png", cairo_surface_status(surface.get()));
  CairoCanvas canvas(surface.get(), ratio, map, options, layout, typesetter);
  canvas.fill({0, 0, width, height}, kPaper);  // the last column and row too, when a pixel ratio does not fill them
  draw(canvas, map, options, layout);
  canvas.finish("render_png");
  cairo_surface_flush(surface.get());

  const unsigned char* const rows = cairo_image_surface_get_data(surface.get());
  const int stride = cairo_image_surface_get_stride(surface.get());
  const auto fill_row = [&](int y, std::span<std::uint8_t> row) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(rows + static_cast<std::ptrdiff_t>(y) * stride);
    for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        row[3 * x + channel] = static_cast<std::uint8_t>(from[x] >> (16 - 8 * channel) & 255);
      }
    }
  };
  return encode_png({width, height, {}, kUnitsPerMetre * ratio, fill_row});
}

}  // namespace qkv::inline v0::view
