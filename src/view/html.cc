// From a map to the explorer's file.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "qkv/view/explorer.h"
#include "qkv/view/pictures.h"
#include "view/explore/describe.h"
#include "view/layout.h"

namespace qkv::inline v0::view {
namespace {

constexpr Index kMaxFloat16Weights = 262'144;  // 0.5 MB before compression
constexpr float kMaxFloat16 = 65504;

/// Weights of the chosen heads of one layer as the file stores them, and the largest error of any.
struct Stored {
  AnyTensor weights;    // [n, Tq, Tk]
  Tensor<float> peaks;  // [n] of U8
  double error = 0;
};

/// One weight, and what the page reads of it. A weight above 0 stays above 0: exactly 0 is a key that no weight may
/// reach.
std::pair<std::uint16_t, double> half_of(float weight) {
  const Float16 half = weight > 0 ? Float16(std::max(weight, 0x1p-24F)) : Float16(weight);
  return {half.bits, static_cast<double>(static_cast<float>(half))};
}
std::pair<std::uint16_t, double> byte_of(float weight, double peak) {
  if (std::isnan(weight)) return {255, 0};
  const double root = 254 * std::sqrt(static_cast<double>(weight) / peak);
  const auto code = weight > 0 ? static_cast<std::uint16_t>(std::max(1L, std::lround(root))) : std::uint16_t{0};
  return {code, peak * std::pow(code / 254.0, 2)};
}

Stored store(const AttentionMap& map, Index layer, const std::vector<Index>& heads, bool as_bytes) {
  const Index each = map.q_len() * map.kv_len(), num_heads = std::ssize(heads);
  Stored stored;
  stored.weights.dtype = as_bytes ? DType::kU8 : DType::kF16;
  stored.weights.sizes = {num_heads, map.q_len(), map.kv_len()};
  stored.peaks = Tensor<float>({num_heads});
  for (Index n = 0; n < num_heads; ++n) {
    const float* const from =
        map.weights.data() + (layer * map.num_heads() + heads[static_cast<std::size_t>(n)]) * each;
    const float peak = std::accumulate(from, from + each, 0.0F, [](float a, float b) { return std::fmax(a, b); });
    stored.peaks.data()[n] = peak;
    for (Index i = 0; i < each; ++i) {
      const auto [code, back] = as_bytes ? byte_of(from[i], static_cast<double>(peak)) : half_of(from[i]);
      stored.weights.bytes.push_back(static_cast<std::byte>(code & 255));
      if (!as_bytes) stored.weights.bytes.push_back(static_cast<std::byte>(code >> 8));
      if (!std::isnan(from[i])) stored.error = std::max(stored.error, std::abs(back - static_cast<double>(from[i])));
    }
  }
  return stored;
}

Json info_of(const HeadStatistics& s) {
  if (s.rows == 0) return Json::object();
  return {
      {"self", s.self}, {"previous", s.previous}, {"first", s.first}, {"largest", s.largest}, {"entropy", s.entropy}};
}

/// The distinct layers (heads) of the chosen panels, in their order.
std::vector<Index> distinct(const std::vector<Panel>& panels, Index Panel::*member) {
  std::vector<Index> out;
  for (const Panel& panel : panels) {
    if (std::ranges::find(out, panel.*member) == out.end()) out.push_back(panel.*member);
  }
  return out;
}

}  // namespace

StateDict explorer_of_map(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const std::vector<Panel> panels = choose_panels(map, options);
  const std::vector<Index> layers = distinct(panels, &Panel::layer), heads = distinct(panels, &Panel::head);
  const bool as_bytes = map.weights.count() > kMaxFloat16Weights || top_weight(map, ValueRange::kMax) > kMaxFloat16;
  StateDict file;
  Json all = Json::array();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    Stored stored = store(map, layers[l], heads, as_bytes);
    const std::string at = "0/" + std::to_string(l) + "/weights";
    file.add(at, std::move(stored.weights));
    if (as_bytes) file.add(at + "_peak", any_tensor(stored.peaks));
    Json layer{{"number", layers[l]}, {"head_numbers", heads}, {"heads", heads.size()}, {"kv_heads", heads.size()},
        {"errors", {{"weights", stored.error}}}};
    for (const Index h : heads) {
      layer["head_info"].push_back(info_of(head_statistics(map, layers[l], h)));
      if (!map.head_names.empty()) layer["head_names"].push_back(map.head_names[static_cast<std::size_t>(h)]);
    }
    all.push_back(std::move(layer));
  }
  Json json{{"start", std::string(options.range == ValueRange::kMax ? "range=max" : "range=unit") +
                          (options.scale == ColourScale::kLinear ? "&spacing=linear" : "&spacing=sqrt")}};
  describe(file, std::move(json), map.title.empty() ? "attention map" : map.title,
      {.name = "attention", .q_len = map.q_len(), .kv_len = map.kv_len(), .layers = std::move(all)}, map.query_tokens,
      map.key_tokens);
  return file;
}

std::string render_html(const AttentionMap& map, const MapOptions& options) {
  return render_explorer(explorer_of_map(map, options));
}

}  // namespace qkv::inline v0::view
