// The options of `qkv attend`, and the mask that they mean.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "qkv/state_dict.h"
#include "ranks/methods.h"
#include "ranks/ranks.h"
#include "support/options.h"

namespace qkv::cli {

struct AttendOptions {
  std::map<std::string, std::string> read, written;  // name of a tensor (q, dq, ...) -> .npy; empty: not given
  std::string in, out;                               // out: .npy or .safetensors
  std::optional<std::string> weights, applied;       // "": into the .safetensors
  bool hash = false;
  DenseMaskOptions dense;
  std::string causal, window, offsets, key_lengths, mask;
  std::optional<double> scale;
  double softcap = 0;
  std::string empty_row = "zero";
  double dropout = 0;
  std::uint64_t seed = 0;
  ComputeOptions compute;
  ParallelOptions parallel;
  CutOptions cut;

  /// "" where none was given.
  const std::string& file(const std::string& name) const;
  /// Where a tensor came from: `--q "q.npy"`, or `--in "all.safetensors", q`.
  std::string source(const std::string& name) const;
};

/// [B, H, T, D] in the type of the call. UsageError for other axes, or where it holds no floats.
template <class T> Tensor<T> typed(const std::string& source, const AnyTensor& tensor);

/// The tensors that are read, by their names in --in.
inline constexpr const char* kInputs[] = {"q", "k", "v", "dout", "bias", "keep", "drop"};
/// UsageError for a tensor of --in that would not be read.
void require_known(const AttendOptions& options, const std::string& name);

void add_attend_options(Options& add, AttendOptions& options);

/// causal, window, key lengths and masks in words; everything except the dense masks.
Mask structural_mask(const AttendOptions& options, Index batch, Index q_len, Index kv_len);
/// Scale, softcap, empty rows, dropout and `mask`.
AttentionOptions attention_options(const AttendOptions& options, Mask mask);

}  // namespace qkv::cli
