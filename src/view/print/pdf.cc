#include "qkv/view/pdf.h"

#include <cairo-pdf.h>

#include <algorithm>
#include <new>
#include <string>

#include "view/print/cairo_canvas.h"

namespace qkv::inline v0::view {
namespace {

constexpr double kPoint = 0.75;         // points of 1/72 inch in a unit of the layout
constexpr double kLongestPage = 14400;  // points: PDF 32000-1, annex C.2

/// What Cairo calls with the next bytes; no exception may pass through it.
cairo_status_t take(void* bytes, const unsigned char* data, unsigned length) noexcept {
  try {
    auto& out = *static_cast<std::vector<std::byte>*>(bytes);
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    out.insert(out.end(), begin, begin + length);
    return CAIRO_STATUS_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CAIRO_STATUS_NO_MEMORY;
  }
}

}  // namespace

std::vector<std::byte> render_pdf(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const Typesetter typesetter;
  const Layout layout = lay_out(map, options, typesetter.text_width());
  const double unit = std::min(kPoint, kLongestPage / std::max(layout.width, layout.height));
  std::vector<std::byte> bytes;
  const Surface surface(cairo_pdf_surface_create_for_stream(&take, &bytes, unit * layout.width, unit * layout.height));
  check_cairo("render_pdf", cairo_surface_status(surface.get()));
  const std::string title = map.title.empty() ? "attention map" : picture_title(map.title);
  cairo_pdf_surface_set_metadata(surface.get(), CAIRO_PDF_METADATA_TITLE, title.c_str());
  cairo_pdf_surface_set_metadata(surface.get(), CAIRO_PDF_METADATA_CREATE_DATE, "");  // the same picture: the same bytes
  {
    CairoCanvas canvas(surface.get(), unit, map, options, layout, typesetter);
    draw(canvas, map, options, layout);
    canvas.finish("render_pdf");
  }
  cairo_surface_finish(surface.get());
  check_cairo("render_pdf", cairo_surface_status(surface.get()));
  return bytes;
}

}  // namespace qkv::inline v0::view
