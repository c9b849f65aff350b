// The layers that relations are held on: every layer by its name, and grouped-query's own features one at a time; and
// the relation that others use too, gradients by differences.
#pragma once

#include <utility>

#include "nn/nn_support.h"

namespace qkv::test {

struct LayerCase {
  std::string name;
  std::string_view layer;
  nn::LayerConfig config;

  bool attends() const { return layer != "average" && layer != "fixed-weights"; }
  /// Adding the same vector to every key moves all scores of a row together, which softmax ignores.
  bool ignores(const std::string& parameter) const {
    const bool of_keys = parameter == "key_proj.bias" || parameter == "k_proj.bias" || parameter == "W_K.bias";
    return of_keys && (layer != "grouped-query" || (!config.rotary && config.qk_norm == nn::QkNorm::kNone));
  }
};

/// One layer per feature that only grouped-query has.
inline std::vector<LayerCase> grouped_cases() {
  const nn::LayerConfig plain{
      .embed_dim = 12, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .causal = true, .seed = 3};
  std::vector<LayerCase> all;
  const auto add = [&](const std::string& name, auto&& change) {
    change(all.emplace_back(LayerCase{name, "grouped-query", plain}).config);
  };
  add("plain", [](nn::LayerConfig&) {});
  add("rotary", [](nn::LayerConfig& c) { c.rotary = RotaryOptions{}; });
  add("interleaved_partial",
      [](nn::LayerConfig& c) { c.rotary = RotaryOptions{.rotary_dim = 4, .layout = RotaryLayout::kInterleaved}; });
  add("yarn", [](nn::LayerConfig& c) {
    c.rotary = RotaryOptions{.scaling = RotaryScaling::kYarn, .factor = 4, .original_context = 8};
  });
  add("head_norm", [](nn::LayerConfig& c) { c.qk_norm = nn::QkNorm::kHead, c.rotary = RotaryOptions{}; });
  add("vector_norm", [](nn::LayerConfig& c) { c.qk_norm = nn::QkNorm::kVector, c.num_kv_heads = 4; });
  add("input_bias",
      [](nn::LayerConfig& c) { c.bias = true, c.output_bias = false, c.num_kv_heads = 1, c.rotary = RotaryOptions{}; });
  add("output_bias", [](nn::LayerConfig& c) { c.output_bias = true; });
  add("dropout", [](nn::LayerConfig& c) { c.dropout = 0.25F, c.residual_dropout = 0.25F, c.rotary = RotaryOptions{}; });
  return all;
}

/// Gradients of x and of every parameter of a layer in its mode, against differences of its output.
inline void check_gradients(const LayerCase& one, nn::Layer& layer, Tensor<float> x, const Tensor<float>& dy,
    const nn::ForwardOptions& options) {
  nn::Saved saved;
  layer.zero_gradients();
  layer.forward(x, options, &saved);
  const Tensor<float> dx = layer.backward(dy, saved, *options.context);
  const auto f = [&] { return layer.forward(x, options); };
  check_gradient("x", x.span(), dx.span(), dy.span(), f);
  for (const nn::Parameter& parameter : layer.parameters()) {
    check_gradient(parameter.name, parameter.value, parameter.gradient, dy.span(), f, 64, one.ignores(parameter.name));
  }
}

}  // namespace qkv::test
