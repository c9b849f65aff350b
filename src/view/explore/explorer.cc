// The page around a file: every tensor as one element of compressed base64, the JSON beside them.
#include "qkv/view/explorer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.h"
#include "core/embedded_file.h"
#include "core/escape.h"
#include "view/explore/deflate.h"
#include "view/text.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_explorer();  // page/
}

namespace qkv::inline v0::view {
namespace {

constexpr const char* kRender = "render_explorer";
constexpr std::size_t kTitleLength = 200;

struct Form {
  std::string_view name;
  std::size_t rank;
  std::string_view dtypes;  // space before and after each
};

constexpr std::string_view kCoded = " F32 F16 BF16 U8 ", kFloats = " F32 F16 BF16 ", kF32 = " F32 ";
constexpr std::array kForms = {Form{"map", 3, kCoded}, Form{"map_peak", 1, kF32}, Form{"mass", 2, kCoded},
    Form{"mass_peak", 1, kF32}, Form{"weights", 3, kCoded}, Form{"weights_peak", 1, kF32}, Form{"q", 3, kFloats},
    Form{"k", 3, kFloats}, Form{"lse", 2, kF32}, Form{"sinks", 1, kF32}, Form{"alibi", 1, kF32},
    Form{"relative", 2, kF32}, Form{"bias", 3, kF32}, Form{"intervals", 2, kF32}, Form{"norms", 2, kFloats},
    Form{"push", 3, kF32}, Form{"push_by", 3, kFloats}, Form{"ov", 3, kF32}};
constexpr Form kRow{"rows/NAME", 2, " F32 F16 "};

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 7 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// The text up to the next slash, which is taken off.
std::string_view take(std::string_view& rest) {
  const std::size_t slash = rest.find('/');
  const std::string_view part = rest.substr(0, slash);
  rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
  return part;
}

/// "3/0/rows/entropy": view 3, layer 0.
const Form* form_of(std::string_view name) {
  if (!is_number(take(name))) return nullptr;
  if (!is_number(take(name))) return nullptr;
  if (name.starts_with("rows/") && name.size() > 5) return &kRow;
  const auto* found = std::ranges::find(kForms, name, &Form::name);
  return found == kForms.end() ? nullptr : found;
}

void check_entry(const StateDict::Entry& entry) {
  const Form* form = form_of(entry.name);
  check<OptionError>(form != nullptr, kRender,
      "tensors must have names of docs/explorer-file.md, such as 0/0/map: got ", escaped(entry.name));
  check<ShapeError>(entry.tensor.sizes.size() == form->rank, kRender, escaped(entry.name), " must have ", form->rank,
      " axes: got ", entry.tensor.shape());
  const std::string dtype(dtype_name(entry.tensor.dtype));
  check<OptionError>(form->dtypes.find(' ' + dtype + ' ') != std::string_view::npos, kRender, escaped(entry.name),
      " must be one of", std::string(form->dtypes), "but is ", dtype);
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// <script type="application/octet-stream" class="data" ...>: no browser runs it, and nothing in base64 ends it.
std::string element(const std::string& name, std::string_view dtype, const std::string& sizes,
    std::span<const std::byte> bytes, std::size_t width) {
  // The mantissas of floats do not deflate: on q and k level 6 takes 2.5 times as long for a hundredth of the size.
  const int level = width > 2 ? 1 : 6;
  const std::string planes = width > 1 ? byte_planes(bytes, width) : std::string();
  return "<script type=\"application/octet-stream\" class=\"data\" data-name=\"" + escape_xml(name) +
         "\" data-dtype=\"" + std::string(dtype) + "\" data-sizes=\"" + sizes + "\">" +
         encode_base64(deflate_bytes(width > 1 ? bytes_of(planes) : bytes, level)) + "</script>\n";
}

std::string colours(Theme theme) {
  std::string out;
  for (const Rgb& c : colour_map(theme)) out += hex_digits(c);
  return out;
}

void put(std::string& html, std::string_view mark, const std::string& text) {
  const std::size_t at = html.find(mark);
  if (at != std::string::npos) html.replace(at, mark.size(), text);
}

}  // namespace

std::string render_explorer(const StateDict& file, bool served) {
  const auto format = file.metadata.find("format"), json = file.metadata.find("explorer");
  check<OptionError>(format != file.metadata.end() && format->second == "qkv.explorer.1", kRender,
      "metadata \"format\" must be \"qkv.explorer.1\" (docs/explorer-file.md): got ",
      format == file.metadata.end() ? std::string("none") : escaped(format->second));
  check<OptionError>(
      json != file.metadata.end(), kRender, "metadata \"explorer\", the JSON of the page, must be there: got none");
  check<OptionError>(
      nlohmann::json::accept(json->second), kRender, "metadata \"explorer\" must be JSON: got ", escaped(json->second));
  const auto title = file.metadata.find("title");
  std::string data = element("explorer", "JSON", "", bytes_of(json->second), 1);
  for (const StateDict::Entry& entry : file.entries()) {
    check_entry(entry);
    std::string sizes;
    for (const Index size : entry.tensor.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    data +=
        element(entry.name, dtype_name(entry.tensor.dtype), sizes, entry.tensor.bytes, dtype_bytes(entry.tensor.dtype));
  }
  std::string html, style, script;  // each of its files in alphabetical order
  for (const EmbeddedFile& part : embedded_explorer())
    (part.name.ends_with(".js") ? script : part.name.ends_with(".css") ? style : html) += part.text;
  // From the end to the front: what is put in is not searched again.
  put(html, "{{script}}", script);
  put(html, "{{dark}}", colours(Theme::kDark));
  put(html, "{{light}}", colours(Theme::kLight));
  put(html, "{{data}}", data);
  put(html, "{{style}}", style);
  put(html, "{{title}}",
      escape_xml(visible_line(title == file.metadata.end() ? "attention explorer" : title->second, kTitleLength)));
  put(html, "{{asks}}", served ? " connect-src 'self';" : "");
  return html;
}

}  // namespace qkv::inline v0::view
