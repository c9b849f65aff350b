// What `qkv layer` was given. Not: what is done with it (cmd_layer.cc, latent.cc).
#pragma once

#include <optional>
#include <string>

#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {

struct LayerCommandOptions {
  std::string name, state, x, out, weights, applied, dout, grads;
  std::string keep, drop, mask_axes, empty_row;
  std::optional<bool> causal;
  Index heads = 0, kv_heads = 0;  // 0: not given
  std::optional<std::string> rope;
  std::optional<double> norm_eps;
  std::optional<float> dropout, residual_dropout;
  std::uint64_t seed = 0;
  ComputeOptions compute;

  bool training() const { return dropout || residual_dropout; }
};

/// A .npy [B, T, E] as f32; UsageError that names the option.
Tensor<float> load_bte(std::string_view option, const std::string& path);

/// `qkv layer latent`.
int run_latent(const LayerCommandOptions& options);

}  // namespace qkv::cli
