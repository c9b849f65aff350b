// Checks of attention maps and sums over them.
#include "qkv/view/heatmap.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "view/layout.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

void check_labels(const char* name, const std::vector<std::string>& labels, Index wanted, const AttentionMap& map) {
  if (labels.empty() || static_cast<Index>(labels.size()) == wanted) return;
  throw ShapeError(std::string("[check_map] ") + name + " must be empty or have one label for each of " +
                   std::to_string(wanted) + " positions: got " + std::to_string(labels.size()) + " for weights " +
                   map.weights.shape());
}

float largest(std::span<const float> weights) {
  float top = 0;
  for (const float w : weights) top = std::max(top, std::isnan(w) ? 0 : w);
  return top;
}

float top_or_one(float top) { return top > 0 ? top : 1; }

}  // namespace

AttentionMap make_map(View<const float, 4> weights, std::vector<std::string> tokens, std::string title) {
  AttentionMap map;
  map.weights = Tensor<float>({weights.size(0), weights.size(1), weights.size(2), weights.size(3)});
  float* out = map.weights.data();
  for (Index l = 0; l < weights.size(0); ++l)
    for (Index h = 0; h < weights.size(1); ++h)
      for (Index i = 0; i < weights.size(2); ++i)
        for (Index j = 0; j < weights.size(3); ++j) *out++ = weights(l, h, i, j);
  map.query_tokens = tokens;
  map.key_tokens = std::move(tokens);
  map.title = std::move(title);
  check_map(map);
  return map;
}

AttentionMap make_map(View<const float, 3> weights, std::vector<std::string> tokens, std::string title) {
  const View<const float, 4> one_layer(weights.data(), {1, weights.size(0), weights.size(1), weights.size(2)},
      {0, weights.stride(0), weights.stride(1), weights.stride(2)});
  return make_map(one_layer, std::move(tokens), std::move(title));
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (const Character& c : decode_utf8(text)) {
    std::string& one = out.emplace_back();
    if (c.valid) {
      append_utf8(one, c.code);
    } else {
      one += static_cast<char>(static_cast<unsigned char>(c.code));
    }
  }
  return out;
}

void check_map(const AttentionMap& map) {
  if (map.weights.rank() != 4 || map.weights.size(0) < 1 || map.weights.size(1) < 1) {
    throw ShapeError(
        "[check_map] weights must be [L, H, Tq, Tk] with at least one layer and head: got " + map.weights.shape());
  }
  check_labels("query_tokens", map.query_tokens, map.q_len(), map);
  check_labels("key_tokens", map.key_tokens, map.kv_len(), map);
  check_labels("head_names", map.head_names, map.num_heads(), map);
  for (const float w : map.weights.span()) {
    if (w < 0 || std::isinf(w)) {
      throw OptionError(
          "[check_map] weights must be at least 0, and finite or NaN: got " + number_text(static_cast<double>(w)));
    }
  }
}

float top_weight(const AttentionMap& map, ValueRange range) {
  return range == ValueRange::kUnit ? 1 : top_or_one(largest(map.weights.span()));
}

float top_weight(const AttentionMap& map, const MapOptions& options) {
  if (options.range == ValueRange::kUnit) return 1;
  float top = 0;
  for (const Panel& panel : choose_panels(map, options)) top = std::max(top, largest(weights_of(map, panel)));
  return top_or_one(top);
}

HeadStatistics head_statistics(const AttentionMap& map, Index layer, Index head) {
  check<OptionError>(layer >= 0 && layer < map.num_layers() && head >= 0 && head < map.num_heads(), "head_statistics",
      "layer and head must be in 0 .. ", map.num_layers() - 1, " and 0 .. ", map.num_heads() - 1, ": got ", layer,
      " and ", head);
  const View<const float, 4> weights = map.weights.view<4>();
  const Index offset = map.kv_len() - map.q_len();
  HeadStatistics sum;
  for (Index i = 1; i < map.q_len(); ++i) {
    const auto weight = [&](Index j) {
      return j >= 0 && j < map.kv_len() ? static_cast<double>(weights(layer, head, i, j)) : 0.0;
    };
    double largest = 0, entropy = 0;
    bool is_number = map.kv_len() > 0;
    for (Index j = 0; j < map.kv_len(); ++j) {
      is_number = is_number && !std::isnan(weight(j));
      largest = std::max(largest, weight(j));
      if (weight(j) > 0) entropy -= weight(j) * std::log(weight(j));
    }
    if (!is_number) continue;
    ++sum.rows;
    sum.self += weight(i + offset);
    sum.previous += weight(i + offset - 1);
    sum.first += weight(0);
    sum.largest += largest;
    sum.entropy += entropy;
  }
  if (sum.rows == 0) return sum;
  for (double* mean : {&sum.self, &sum.previous, &sum.first, &sum.largest, &sum.entropy})
    *mean /= static_cast<double>(sum.rows);
  return sum;
}

}  // namespace qkv::inline v0::view
