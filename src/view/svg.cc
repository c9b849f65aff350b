// The scene as SVG 1.1.
#include <algorithm>

#include "qkv/view/pictures.h"
#include "view/png_file.h"
#include "view/scene.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

std::string hex(Rgb c) { return "#" + hex_digits(c); }

class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(const AttentionMap& map, const MapOptions& options, const Layout& layout)
      : map_(map), options_(options), layout_(layout), colours_(palette()) {
    const std::string width = std::to_string(layout.width), height = std::to_string(layout.height);
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"" + width +
           "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " + height +
           "\" class=\"qkv-map\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\">\n<title>" +
           escape_xml(map.title.empty() ? "attention map" : picture_title(map.title)) + "</title>\n";
    const Index cells = static_cast<Index>(layout.panels.size()) * layout.rows.num_cells() * layout.columns.num_cells();
    is_vector_ = layout.rows.pool == 1 && cells <= kMaxSvgCells;
  }

  void fill(const Box& box, Paint paint) override { out_ += rectangle(box, paint) + "/>\n"; }

  void text(const Label& label) override {
    texts_[label.paint] = true;
    const std::string x = std::to_string(label.x), y = std::to_string(label.y);
    out_ += "<text x=\"" + x + "\" y=\"" + y + "\" dy=\".36em\" font-size=\"" + std::to_string(label.size) +
            "\" fill=\"" + hex(colours_[label.paint]) + "\"";
    if (label.anchor != Anchor::kStart)
      out_ += label.anchor == Anchor::kMiddle ? " text-anchor=\"middle\"" : " text-anchor=\"end\"";
    if (label.upward) out_ += " transform=\"rotate(-90 " + x + " " + y + ")\"";
    out_ += ">" + escape_xml(label.text) + "</text>\n";
  }

  void cells(const Panel& panel) override { is_vector_ ? vector_cells(panel) : embed(panel); }

  /// Each colour on a dark page, found by its own: a reader that knows no style draws the light ones.
  std::string finish() {
    const auto dark = palette(Theme::kDark);
    out_ += "<style>@media (prefers-color-scheme: dark) {\n";
    for (std::size_t n = 0; n < dark.size(); ++n) {
      for (const auto& [tag, used] : {std::pair("rect", boxes_[n]), std::pair("text", texts_[n])})
        if (used)
          out_ +=
              std::string(".qkv-map ") + tag + "[fill=\"" + hex(colours_[n]) + "\"] { fill: " + hex(dark[n]) + " }\n";
    }
    return std::move(out_) +
           (is_vector_ ? "" : ".qkv-map .light { display: none }\n.qkv-map .dark { display: inline }\n") +
           "}</style>\n</svg>\n";
  }

 private:
  std::string rectangle(const Box& box, Paint paint) {
    boxes_[paint] = true;
    return "<rect x=\"" + std::to_string(box.x) + "\" y=\"" + std::to_string(box.y) + "\" width=\"" +
           std::to_string(box.width) + "\" height=\"" + std::to_string(box.height) + "\" fill=\"" +
           hex(colours_[paint]) + "\"";
  }

  static std::string position(const std::vector<std::string>& tokens, Index i) {
    const std::string number = std::to_string(i);
    return tokens.empty() ? number : visible_label(tokens[static_cast<std::size_t>(i)], 40) + " (" + number + ")";
  }

  void vector_cells(const Panel& panel) {
    const int width = layout_.columns.cell, height = layout_.rows.cell;
    const View<const float, 4> weights = map_.weights.view<4>();
    out_ += "<g shape-rendering=\"crispEdges\">\n";
    for (Index i = 0; i < map_.q_len(); ++i) {
      const std::string query = escape_xml(position(map_.query_tokens, i));
      for (Index j = 0; j < map_.kv_len(); ++j) {
        const float w = weights(panel.layer, panel.head, i, j);
        const Box cell{
            panel.cells.x + static_cast<int>(j) * width, panel.cells.y + static_cast<int>(i) * height, width, height};
        out_ += rectangle(cell, cell_paint(map_, options_, layout_, panel, i, j)) + "><title>" + query +
                " attends to " + escape_xml(position(map_.key_tokens, j)) + ": " + exact_percent(w) +
                "</title></rect>\n";
      }
    }
    out_ += "</g>\n";
  }

  void embed(const Panel& panel) {
    const Raster raster = raster_cells(map_, options_, layout_, panel);
    const auto width = static_cast<std::ptrdiff_t>(raster.width);
    for (const Theme theme : {Theme::kLight, Theme::kDark}) {
      const std::vector<std::byte> png =
          encode_png({raster.width, raster.height, palette(theme), 0, [&](int y, std::span<std::uint8_t> row) {
                        std::copy_n(raster.pixels.begin() + y * width, width, row.begin());
                      }});
      const std::string_view bytes(reinterpret_cast<const char*>(png.data()), png.size());
      out_ += std::string("<image class=") + (theme == Theme::kLight ? "\"light\"" : "\"dark\" display=\"none\"") +
              " x=\"" + std::to_string(panel.cells.x) + "\" y=\"" + std::to_string(panel.cells.y) + "\" width=\"" +
              std::to_string(raster.width) + "\" height=\"" + std::to_string(raster.height) +
              "\" style=\"image-rendering:pixelated\" xlink:href=\"data:image/png;base64," + encode_base64(bytes) +
              "\"/>\n";
    }
  }

  const AttentionMap& map_;
  const MapOptions& options_;
  const Layout& layout_;
  std::array<Rgb, kPaletteSize> colours_;
  std::array<bool, kPaletteSize> boxes_{}, texts_{};  // what has which colours
  bool is_vector_ = true;
  std::string out_;
};

}  // namespace

std::string render_svg(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const TextWidth text_width = [](std::string_view text, int size) { return display_width(text) * 2 * size / 3; };
  const Layout layout = lay_out(map, options, text_width);
  SvgCanvas canvas(map, options, layout);
  draw(canvas, map, options, layout);
  return canvas.finish();
}

}  // namespace qkv::inline v0::view
