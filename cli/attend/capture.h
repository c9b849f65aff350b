// The options of `qkv attend` that capture weights on the way: statistics, the largest of each row, rows, sums of
// columns and blocks, in files of their own; the output is bit-identical. Not: all weights (--weights).
#pragma once

#include <string>

#include "qkv/attention.h"
#include "support/files.h"

namespace qkv::cli {

struct CaptureOptions {
  std::string stats, file;             // .json or .npy; .safetensors
  std::string heads, rows, block_map;  // "0,3", "17", "64" or "32,64"
  std::string of = "weights";
  Index top_k = 0;
  bool column_mass = false;

  bool any() const { return !stats.empty() || !file.empty(); }
  void add_to(Options& add);
};

/// What they mean for one call.
class CaptureCall {
 public:
  /// Names the files. Throws UsageError.
  CaptureCall(const CaptureOptions& options, bool has_dout, Outputs& outputs);
  /// For the options of attention_forward and attention_backward.
  CaptureRequest request(Index kv_len);
  /// Whether backward captures, not forward.
  bool in_backward() const { return options_.any() && what_.of == CaptureOf::kGradient; }
  void write(Outputs& outputs) const;

 private:
  const CaptureOptions& options_;
  Capture what_;
  CaptureResult result_;
};

}  // namespace qkv::cli
