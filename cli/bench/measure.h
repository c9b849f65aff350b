// How a case is measured: timed, with the machine's peak before and after it. Not: which cases, what is printed.
#pragma once

#include <optional>

#include "bench/bench.h"
#include "bench/peak.h"

namespace qkv::cli {

struct Timing {
  double median_ms = 0, best_ms = 0, worst_ms = 0;
  double spread = 0;  ///< between the quartiles, as a fraction of the median
  std::size_t runs = 0;
};

struct Measured {
  const BenchCase* what = nullptr;
  Timing time{};
  std::optional<Timing> plain{};  ///< Prepared::plain's
  Peak peak{};                    ///< the larger of those before and after the case
  double peak_moved = 0;          ///< by how much they differ, as a fraction
  double flops = 0, bytes = 0, plain_share = 1;
  std::string kernel{};

  double gflops() const { return flops / time.median_ms / 1e6; }
  double gbs() const { return bytes / time.median_ms / 1e6; }
  bool is_held_against_dot() const { return what->type == "bf16" && peak.dot_bf16 > 0; }
  double fma() const {
    return what->type == "f64" ? peak.fma_f64 : is_held_against_dot() ? peak.dot_bf16 : peak.fma_f32;
  }
  /// Whether reading takes longer than the flops, both at their peaks.
  bool bound_by_reading() const { return bytes > 0 && bytes / peak.read > flops / fma(); }

  /// "fma", "bf16 dot", "bandwidth", or "plain"
  const char* of() const;
  double fraction() const;
  /// Whether the peaks before and after it are within 3 % of each other.
  bool steady() const { return peak_moved <= 0.03; }
};

Measured measure(const BenchCase& one, Context& context, PeakMeter& meter);

}  // namespace qkv::cli
