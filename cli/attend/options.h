// The options of `qkv attend`, and the attention options that they mean. Not: reading and writing its tensors (cmd_attend.cc).
#pragma once

#include <optional>
#include <string>

#include "qkv/attention.h"
#include "support/options.h"

namespace qkv::cli {

struct AttendOptions {
  std::string q, k, v, out, weights, applied, lse;  // .npy files
  std::string dout, dq, dk, dv, dbias;
  std::string in;  // or .safetensors
  std::string causal, window, offsets, key_lengths, mask;
  std::string keep, drop, mask_axes, bias;
  std::optional<double> scale;
  double softcap = 0;
  std::string empty_row = "zero";
  double dropout = 0;
  std::uint64_t seed = 0;
  ComputeOptions compute;
  // Whether an output was asked for by name: with --in a bare --weights puts it into the file.
  bool wants_weights = false, wants_applied = false;
};

/// Adds them all.
void add_attend_options(CLI::App& app, AttendOptions& options);

/// causal, window, key lengths and masks in words; everything except the dense masks and the bias.
Mask structural_mask(const AttendOptions& options, Index q_len, Index kv_len);
/// Scale, softcap, empty rows, dropout and `mask`.
AttentionOptions attention_options(const AttendOptions& options, Mask mask);

}  // namespace qkv::cli
