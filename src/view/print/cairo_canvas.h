// The scene drawn with Cairo: the pixels of PNG, the vectors of PDF. Not: the files.
#pragma once

#include <cairo.h>

#include <memory>
#include <string_view>

#include "view/print/typesetter.h"
#include "view/scene.h"

namespace qkv::inline v0::view {

struct DestroySurface {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
};
using Surface = std::unique_ptr<cairo_surface_t, DestroySurface>;

/// Throws what Cairo complains of: std::bad_alloc, or UnsupportedError in the name of `function`.
void check_cairo(std::string_view function, cairo_status_t status);

class CairoCanvas final : public Canvas {
 public:
  /// `unit`: how long a unit of the layout is on the surface.
  CairoCanvas(cairo_surface_t* surface, double unit, const AttentionMap& map, const MapOptions& options, const Layout& layout,
              const Typesetter& typesetter);

  void fill(const Box& box, Paint paint) override;
  void text(const Label& label) override;
  void cells(const Panel& panel) override;

  /// After the last of them; throws as check_cairo.
  void finish(std::string_view function);

 private:
  struct Destroy {
    void operator()(cairo_t* cairo) const { cairo_destroy(cairo); }
  };
  void set_colour(Paint paint);

  const AttentionMap& map_;
  const MapOptions& options_;
  const Layout& layout_;
  const Typesetter& typesetter_;
  std::array<Rgb, kPaletteSize> colours_ = palette();
  std::unique_ptr<cairo_t, Destroy> cairo_;
};

}  // namespace qkv::inline v0::view
