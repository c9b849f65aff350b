// The data of the HTML page: weights in base64, labels as script strings. Not: its look and behaviour (page/).
#include "qkv/view/html.h"

#include <algorithm>
#include <cmath>

#include "core/file.h"
#include "view/layout.h"
#include "view/page.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

constexpr Index kMaxFloat16Weights = 262'144;  // 0.7 MB of base64
constexpr std::size_t kTokenChars = 200;       // no label needs more; bounds the page of a hostile file

double decode_float16(std::uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> 10);
  const double fraction = (bits & 1023) / 1024.0;
  return exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
}

/// A share in [0, 1] as IEEE 754 binary16, rounded to nearest even.
std::uint32_t encode_float16(double share) {
  int exponent = 0;
  const double fraction = std::frexp(share, &exponent);  // share = fraction * 2^exponent, 0.5 <= fraction < 1
  if (share < std::ldexp(1, -14))
    return static_cast<std::uint32_t>(std::nearbyint(std::ldexp(share, 24)));  // subnormal, or zero
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint((2 * fraction - 1) * 1024));
  return (static_cast<std::uint32_t>(exponent + 14) << 10) +
         mantissa;  // a mantissa of 1024 carries into the exponent, as it must
}

/// Weights of one head, and the largest error of any stored weight.
class Encoder {
 public:
  Encoder(bool is_float16, double peak) : is_float16_(is_float16), peak_(peak) {}

  std::string encode(View<const float, 2> weights) {  // [Tq, Tk]
    std::string bytes;
    for (Index i = 0; i < weights.size(0); ++i) {
      for (Index j = 0; j < weights.size(1); ++j) append(bytes, static_cast<double>(weights(i, j)));
    }
    return encode_base64(bytes);
  }

  double largest_error() const { return largest_error_; }

 private:
  void append(std::string& bytes, double weight) {
    const double share = weight / peak_;
    std::uint32_t stored = 0;
    double back = 0;
    if (std::isnan(weight)) {
      stored = is_float16_ ? 0x7E00 : 255;
    } else if (is_float16_) {
      stored = encode_float16(share);
      back = decode_float16(stored);
    } else {
      stored = static_cast<std::uint32_t>(std::lround(254 * std::sqrt(share)));
      back = (stored / 254.0) * (stored / 254.0);
    }
    if (!std::isnan(weight)) largest_error_ = std::max(largest_error_, std::abs(back * peak_ - weight));
    bytes += static_cast<char>(static_cast<unsigned char>(stored & 255));
    if (is_float16_) bytes += static_cast<char>(static_cast<unsigned char>(stored >> 8));
  }

  bool is_float16_;
  double peak_;
  double largest_error_ = 0;
};

std::string number(double value) { return significant(value, 9); }

/// "[a,b,c]" from each(item) of every item.
template <class List, class Each>
std::string array_of(const List& list, Each each) {
  std::string out = "[";
  for (const auto& item : list) out += (out.size() > 1 ? "," : "") + each(item);
  return out + "]";
}

std::string labels(const std::vector<std::string>& tokens) {
  if (tokens.empty()) return "null";
  return array_of(tokens, [](const std::string& token) { return quote_script(visible_label(token, kTokenChars)); });
}

std::string colours(Theme theme) {
  std::string out = "\"";
  for (const Rgb& c : colour_map(theme)) out += hex_digits(c);
  return out + "\"";
}

std::string statistics_of(const HeadStatistics& s) {
  return "{self:" + number(s.self) + ",previous:" + number(s.previous) + ",first:" + number(s.first) +
         ",largest:" + number(s.largest) + ",entropy:" + number(s.entropy) + ",rows:" + std::to_string(s.rows) + "}";
}

/// The distinct layers (heads) of the chosen panels, in their order.
std::vector<Index> distinct(const std::vector<Panel>& panels, Index Panel::*member) {
  std::vector<Index> out;
  for (const Panel& panel : panels) {
    if (std::find(out.begin(), out.end(), panel.*member) == out.end()) out.push_back(panel.*member);
  }
  return out;
}

/// The object literal M of the page's script.
std::string page_data(const AttentionMap& map, const HtmlOptions& options) {
  const std::vector<Panel> panels = choose_panels(map, options.map);
  const std::vector<Index> layers = distinct(panels, &Panel::layer), heads = distinct(panels, &Panel::head);
  const bool is_float16 = options.precision == HtmlPrecision::kFloat16 ||
                          (options.precision == HtmlPrecision::kAuto && map.weights.count() <= kMaxFloat16Weights);
  const double peak = static_cast<double>(top_weight(map, ValueRange::kMax));
  Encoder encoder(is_float16, peak);
  const View<const float, 4> all = map.weights.view<4>();
  const auto per_head = [&](auto make) {
    return array_of(layers, [&](Index l) { return array_of(heads, [&](Index h) { return make(l, h); }); });
  };
  const std::string data = per_head([&](Index l, Index h) {
    const float* start = all.data() + l * all.stride(0) + h * all.stride(1);
    return '"' + encoder.encode({start, {map.q_len(), map.kv_len()}}) + '"';
  });
  const auto id = [](Index i) { return std::to_string(i); };
  const bool is_shared = map.q_len() == map.kv_len() && map.query_tokens == map.key_tokens;
  return "{\ntitle:" + quote_script(visible_line(map.title, kTokenChars)) + ",\nlayers:" + array_of(layers, id) +
         ",heads:" + array_of(heads, id) + ",q:" + id(map.q_len()) + ",k:" + id(map.kv_len()) +
         ",shared:" + (is_shared ? "1" : "0") + ",\nformat:" + (is_float16 ? "\"float16\"" : "\"sqrt-byte\"") +
         ",peak:" + number(peak) + ",error:" + number(encoder.largest_error()) +
         ",range:" + (options.map.range == ValueRange::kMax ? "\"max\"" : "\"unit\"") +
         ",scale:" + (options.map.scale == ColourScale::kLinear ? "\"linear\"" : "\"sqrt\"") +
         ",\nlight:" + colours(Theme::kLight) + ",\ndark:" + colours(Theme::kDark) + ",nan:\"" + hex_digits(kNanColour) +
         "\",\nqueryTokens:" + labels(map.query_tokens) + ",\nkeyTokens:" + labels(map.key_tokens) +
         ",\nstatistics:" + per_head([&](Index l, Index h) { return statistics_of(head_statistics(map, l, h)); }) +
         ",\ndata:" + data + "\n}";
}

}  // namespace

std::string render_html(const AttentionMap& map, const HtmlOptions& options) {
  check_map(map);
  const std::string title = map.title.empty() ? "attention map" : visible_line(map.title, kTitleChars);
  std::string out(page().head);
  out += escape_xml(title);
  out += page().body;
  out += page_data(map, options);
  return out += page().script;
}

void save_html(const std::filesystem::path& path, const AttentionMap& map, const HtmlOptions& options) {
  write_file_atomically(path, render_html(map, options));
}

}  // namespace qkv::inline v0::view
