// The options of `qkv attend` that look at the weights on the way: statistics,
// the largest of each row, rows, sums of columns and blocks. What they see goes
// into files of its own; the output is bit-identical. Not: all weights
// (--weights).
#pragma once

#include <string>

#include "qkv/attention.h"
#include "support/command.h"
#include "support/files.h"

namespace qkv::cli {

struct CaptureOptions {
  std::string stats, seen, map_out;    // files
  std::string heads, rows, block_map;  // "0,3", "17", "64" or "32,64"
  std::string of = "weights";
  Index top_k = 0;
  bool column_mass = false, positive = false, mean_of_heads = false;

  bool any() const { return !stats.empty() || !seen.empty() || !map_out.empty(); }
};

/// Adds them all.
void add_capture_options(CLI::App& app, CaptureOptions& options);

/// What they mean for one call.
class Look {
 public:
  /// Names the files. Throws UsageError.
  Look(const CaptureOptions& options, bool has_dout, Outputs& outputs);
  /// For the options of attention_forward and attention_backward.
  CaptureRequest request(Index kv_len);
  /// Whether it is backward that looks.
  bool needs_backward() const { return options_.any() && what_.of == CaptureOf::kGradient; }
  /// Writes what was seen of q_len queries.
  void write(Index q_len, Outputs& outputs) const;

 private:
  const CaptureOptions& options_;
  Capture what_;
  CaptureResult seen_;
};

}  // namespace qkv::cli
