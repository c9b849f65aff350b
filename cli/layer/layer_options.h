// What `qkv layer` was given. Not: what is done with it (cmd_layer.cc, latent.cc).
#pragma once

#include <optional>
#include <string>

#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {

struct LayerCommandOptions {
  std::string name, state, x, out, weights, applied, dout, grads, empty_row;
  DenseMaskOptions dense;
  std::optional<bool> causal;
  Index heads = 0, kv_heads = 0;  // 0: not given
  std::optional<std::string> rope;
  std::optional<double> norm_eps;
  std::optional<float> dropout, residual_dropout;
  std::uint64_t seed = 0;
  ComputeOptions compute;

  bool training() const { return dropout || residual_dropout; }
};

/// `qkv layer latent`: y of x, and where dout is not empty the gradients of x and of every parameter.
Tensor<float> run_latent(
    const LayerCommandOptions& options, const Tensor<float>& x, const Tensor<float>& dout, StateDict& gradients);

}  // namespace qkv::cli
