// A layer's outputs, weights and every gradient against a golden file.
#pragma once

#include <gtest/gtest.h>

#include "golden/golden.h"
#include "qkv/nn/layer.h"

namespace qkv::golden {

/// One step of `layer` on the file's x and dout; adds the file's mask and a tensor for weights to `options`.
inline void expect_golden_layer(const File& file, nn::Layer& layer, nn::ForwardOptions options) {
  const Tensor<float> x = file.f32("x"), dout = file.f32("dout");
  Tensor<float> weights;
  options.weights = &weights;
  const Tensor<std::uint8_t> mask = file.has("mask") ? to_bool(file.tensors().at("mask")) : Tensor<std::uint8_t>();
  if (mask.rank() > 0) options.mask = layer.keep(mask);
  nn::Saved saved;
  const Tensor<float> y = layer.forward(x, options, &saved);
  const Tensor<float> dx = layer.backward(dout, saved);

  EXPECT_LE(file.ratio("out", y.span()), 1);
  EXPECT_LE(file.ratio("weights", std::as_const(weights).span()), 1);
  EXPECT_LE(file.ratio("grad.x", dx.span()), 1);
  const std::vector<nn::Parameter> parameters = layer.parameters();
  EXPECT_EQ(parameters.size() + 1, file.names("grad.").size());
  for (const nn::Parameter& parameter : parameters) {
    EXPECT_LE(file.ratio("grad." + parameter.name, parameter.gradient), 1) << parameter.name;
  }
}

}  // namespace qkv::golden
