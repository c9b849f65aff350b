#include "view/print/cairo_canvas.h"

#include <new>
#include <string>

#include "qkv/error.h"
#include "view/raster.h"

namespace qkv::inline v0::view {
namespace {

/// Cairo's pixels of 32 bits, of which the upper 8 say nothing.
std::uint32_t packed(Rgb c) {
  return static_cast<std::uint32_t>(c.red) << 16 | static_cast<std::uint32_t>(c.green) << 8 | c.blue;
}

}  // namespace

void check_cairo(std::string_view function, cairo_status_t status) {
  if (status == CAIRO_STATUS_SUCCESS) return;
  if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
  throw UnsupportedError("[" + std::string(function) + "] " +
                         "Cairo cannot draw this picture: " + cairo_status_to_string(status));
}

CairoCanvas::CairoCanvas(cairo_surface_t* surface, double unit, const AttentionMap& map, const MapOptions& options,
                         const Layout& layout, const Typesetter& typesetter)
    : map_(map), options_(options), layout_(layout), typesetter_(typesetter), cairo_(cairo_create(surface)) {
  cairo_scale(cairo_.get(), unit, unit);
  cairo_set_antialias(cairo_.get(), CAIRO_ANTIALIAS_NONE);  // of boxes; text has its own
}

void CairoCanvas::set_colour(Paint paint) {
  const Rgb c = colours_[paint];
  cairo_set_source_rgb(cairo_.get(), c.red / 255.0, c.green / 255.0, c.blue / 255.0);
}

void CairoCanvas::fill(const Box& box, Paint paint) {
  set_colour(paint);
  cairo_rectangle(cairo_.get(), box.x, box.y, box.width, box.height);
  cairo_fill(cairo_.get());
}

void CairoCanvas::text(const Label& label) {
  set_colour(label.paint);
  typesetter_.draw(cairo_.get(), label);
}

void CairoCanvas::cells(const Panel& panel) {
  const Raster raster = raster_cells(map_, options_, layout_, panel);
  const Surface image(cairo_image_surface_create(CAIRO_FORMAT_RGB24, raster.width, raster.height));
  check_cairo("CairoCanvas::cells", cairo_surface_status(image.get()));
  unsigned char* const rows = cairo_image_surface_get_data(image.get());
  const int stride = cairo_image_surface_get_stride(image.get());
  auto pixel = raster.pixels.begin();
  for (int y = 0; y < raster.height; ++y) {
    auto* const row = reinterpret_cast<std::uint32_t*>(rows + static_cast<std::ptrdiff_t>(y) * stride);
    for (int x = 0; x < raster.width; ++x) row[x] = packed(colours_[*pixel++]);
  }
  cairo_surface_mark_dirty(image.get());
  cairo_save(cairo_.get());
  cairo_set_source_surface(cairo_.get(), image.get(), panel.cells.x, panel.cells.y);
  cairo_pattern_set_filter(cairo_get_source(cairo_.get()), CAIRO_FILTER_NEAREST);
  cairo_rectangle(cairo_.get(), panel.cells.x, panel.cells.y, raster.width, raster.height);
  cairo_fill(cairo_.get());
  cairo_restore(cairo_.get());
}

void CairoCanvas::finish(std::string_view function) { check_cairo(function, cairo_status(cairo_.get())); }

}  // namespace qkv::inline v0::view
