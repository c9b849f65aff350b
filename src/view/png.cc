// The scene as PNG: a raster of palette entries, written by libpng's simplified interface. Not: true colour, reading.
#include "qkv/view/png.h"

#include <png.h>

#include <algorithm>
#include <new>

#include "core/file.h"
#include "view/font.h"
#include "view/raster.h"
#include "view/scene.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

class PngCanvas final : public Canvas {
 public:
  PngCanvas(const AttentionMap& map, const MapOptions& options, const Layout& layout)
      : map_(map), options_(options), layout_(layout), raster_(layout.width, layout.height) {}

  void fill(const Box& box, Paint paint) override { raster_.fill(box, paint); }

  void text(const Label& label) override {
    const std::string ascii = ascii_label(label.text);
    const int length = static_cast<int>(ascii.size()) * kGlyphAdvance * label.scale - label.scale;
    const int back = label.anchor == Anchor::kStart ? 0 : label.anchor == Anchor::kMiddle ? length / 2 : length;
    const int half = kGlyphAscent * label.scale / 2;
    for (std::size_t n = 0; n < ascii.size(); ++n) {
      for (int row = 0; row < kGlyphHeight; ++row) {
        for (int column = 0; column < kGlyphWidth; ++column) {
          if (!glyph_dot(ascii[n], column, row)) continue;
          const int along = (static_cast<int>(n) * kGlyphAdvance + column) * label.scale - back,
                    across = row * label.scale - half;
          const int x = label.upward ? label.x + across : label.x + along;
          const int y = label.upward ? label.y - along - label.scale : label.y + across;
          raster_.fill({x, y, label.scale, label.scale}, label.paint);
        }
      }
    }
  }

  void cells(const Panel& panel) override {
    raster_cells(raster_, {panel.cells.x, panel.cells.y, 0, 0}, map_, options_, layout_, panel);
  }

  const Raster& raster() const { return raster_; }

 private:
  const AttentionMap& map_;
  const MapOptions& options_;
  const Layout& layout_;
  Raster raster_;
};

}  // namespace

void Raster::fill(const Box& box, Paint paint) {
  const int left = std::max(box.x, 0), right = std::min(box.x + box.width, width);
  for (int y = std::max(box.y, 0); y < std::min(box.y + box.height, height) && left < right; ++y) {
    std::fill_n(pixels.begin() + static_cast<std::ptrdiff_t>(y) * width + left, right - left, paint);
  }
}

void raster_cells(Raster& raster, const Box& origin, const AttentionMap& map, const MapOptions& options, const Layout& layout,
                  const Panel& panel) {
  const int height = layout.rows.cell, width = layout.columns.cell;
  for (Index i = 0; i < layout.rows.num_cells(); ++i) {
    for (Index j = 0; j < layout.columns.num_cells(); ++j) {
      const Box cell{origin.x + static_cast<int>(j) * width, origin.y + static_cast<int>(i) * height, width, height};
      raster.fill(cell, cell_paint(map, options, layout, panel, i, j));
    }
  }
}

std::vector<std::byte> encode_png(const Raster& raster) {
  std::array<png_byte, 3 * kPaletteSize> colours;
  std::size_t at = 0;
  for (const Rgb& c : palette()) {
    for (const std::uint8_t channel : {c.red, c.green, c.blue}) colours[at++] = channel;
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(raster.width);
  image.height = static_cast<png_uint_32>(raster.height);
  image.format = PNG_FORMAT_RGB_COLORMAP;
  image.colormap_entries = kPaletteSize;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::byte> bytes(size);
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, raster.pixels.data(), 0, colours.data()) == 0) {
    throw std::bad_alloc();  // memory is the only possible cause: size and palette are within PNG's limits
  }
  bytes.resize(size);
  return bytes;
}

std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const TextWidth text_width = [](std::string_view text, int scale) {
    return static_cast<int>(ascii_label(text).size()) * kGlyphAdvance * scale;
  };
  const Layout layout = lay_out(map, options, text_width);
  PngCanvas canvas(map, options, layout);
  draw(canvas, map, options, layout);
  return encode_png(canvas.raster());
}

void save_png(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options) {
  write_file_atomically(path, render_png(map, options));
}

}  // namespace qkv::inline v0::view
