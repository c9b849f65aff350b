// GroupedQueryAttention's gradients, of its input and of every parameter, against differences of its output. Not: which layers.
#pragma once

#include "nn/nn_support.h"

namespace qkv::test {

inline void check_grouped_layer(const nn::LayerConfig& config, Index batch, Index length,
                                Context& context = Context::default_context()) {
  nn::GroupedQueryAttention layer(config);
  randomise(layer, 8);
  layer.train();
  Tensor<float> x = random_tensor({batch, length, config.embed_dim}, 11);
  const Tensor<float> dy = random_tensor({batch, length, config.embed_dim}, 12);
  const nn::ForwardOptions options{.seed = 7, .positions = {.offset = 2}, .context = &context};
  nn::Saved saved;
  layer.forward(x, options, &saved);
  const Tensor<float> dx = layer.backward(dy, saved, context);
  const auto f = [&] { return layer.forward(x, options); };
  check_gradient("x", x.span(), dx.span(), dy.span(), f);
  for (const nn::Parameter& parameter : layer.parameters()) {
    // Adding the same vector to every key moves all scores of a row together, which softmax ignores.
    const bool vanishes = parameter.name == "k_proj.bias" && !config.rotary && config.qk_norm == nn::QkNorm::kNone;
    check_gradient(parameter.name, parameter.value, parameter.gradient, dy.span(), f, 64, vanishes);
  }
}

}  // namespace qkv::test
