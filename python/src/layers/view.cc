// Pictures of attention: bytes of PNG, PDF, SVG, one HTML page, text for a terminal.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "layers/nn.h"
#include "qkv/io/safetensors.h"
#include "qkv/view/explorer.h"
#include "qkv/view/pictures.h"

namespace qkv::python {

namespace {

using Labels = std::vector<std::string>;

struct MapObject {
  view::AttentionMap map;
  view::MapOptions options;
};

// weights float32 [L, H, Tq, Tk].
MapObject make_map(nb::handle weights, Labels query_tokens, Labels key_tokens, std::string title,
    std::vector<Index> layers, std::vector<Index> heads, const std::string& range, const std::string& scale,
    bool numbers) {
  const Array wa("plot", "weights", weights);
  MapObject made{view::make_map(wa.input<float, 4>()), {}};
  made.map.query_tokens = std::move(query_tokens);
  made.map.key_tokens = std::move(key_tokens);
  made.map.title = std::move(title);
  made.options.layers = std::move(layers);
  made.options.heads = std::move(heads);
  made.options.range = range == "max" ? view::ValueRange::kMax : view::ValueRange::kUnit;
  made.options.scale = scale == "linear" ? view::ColourScale::kLinear : view::ColourScale::kSqrt;
  made.options.numbers = numbers ? view::CellNumbers::kWhereTheyFit : view::CellNumbers::kNever;
  view::check_map(made.map);
  return made;
}

/// The result of `render`, made while other Python threads run.
template <class Render> nb::bytes bytes_of(Render render) {
  std::vector<std::byte> bytes;
  {
    const Released released;
    bytes = render();
  }
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes png(const MapObject& object, double pixel_ratio) {
  return bytes_of([&] { return view::render_png(object.map, object.options, {.pixel_ratio = pixel_ratio}); });
}

nb::bytes pdf(const MapObject& object) {
  return bytes_of([&] { return view::render_pdf(object.map, object.options); });
}

/// (character, its code point) of each that no installed font has.
std::vector<std::pair<std::string, int>> missing(const MapObject& object) {
  std::vector<std::pair<std::string, int>> all;
  for (const view::MissingCharacter& one : view::missing_characters(object.map, object.options)) {
    all.emplace_back(one.text, static_cast<int>(one.code));
  }
  return all;
}

nb::dict statistics(const MapObject& object, Index layer, Index head) {
  const view::HeadStatistics found = view::head_statistics(object.map, layer, head);
  nb::dict d;
  d["self"] = found.self;
  d["previous"] = found.previous;
  d["first"] = found.first;
  d["largest"] = found.largest;
  d["entropy_nats"] = found.entropy;
  d["rows"] = found.rows;
  return d;
}

// docs/explorer-file.md, its full form.
std::string explorer_page(const StateDict& file, bool served = false) {
  const Released released;
  return view::render_explorer(file, served);
}

}  // namespace

void bind_view(nb::module_& m) {
  nb::class_<MapObject>(m, "Map")
      .def("png", &png)
      .def("pdf", &pdf)
      .def("missing", &missing)
      .def("svg", [](const MapObject& object) { return view::render_svg(object.map, object.options); })
      .def("html", [](const MapObject& object) { return view::render_html(object.map, object.options); })
      .def("terminal",
          [](const MapObject& object, bool colour, bool unicode, int columns) {
            return view::render_terminal(
                object.map, {.map = object.options, .colour = colour, .unicode = unicode, .columns = columns});
          })
      .def("top_weight", [](const MapObject& object) { return view::top_weight(object.map, object.options); })
      .def("statistics", &statistics);
  m.def("attention_map", &make_map);
  m.def("explorer_page", [](const nb::bytes& file) {
    return explorer_page(io::parse_safetensors({static_cast<const std::byte*>(file.data()), file.size()}));
  });
  m.def(
      "explorer_page",
      [](const std::string& path, bool served) { return explorer_page(io::load_safetensors(path), served); },
      nb::arg("path"), nb::arg("served") = false);
  m.def("characters", [](const std::string& text) { return view::characters(text); });
  m.def("picture_label", [](const std::string& token) { return view::picture_label(token); });
  m.def("picture_title", [](const std::string& title) { return view::picture_title(title); });
  const auto numbers = [](const view::Rgb& c) { return std::vector<int>{c.red, c.green, c.blue}; };
  m.def("colour_map", [=] {
    std::vector<std::vector<int>> colours;
    for (const view::Rgb& c : view::colour_map(view::Theme::kLight)) colours.push_back(numbers(c));
    return colours;
  });
  m.def("draws_text", &view::draws_text);
  m.attr("NAN_COLOUR") = nb::cast(numbers(view::kNanColour));
}

}  // namespace qkv::python
