// How a case is measured: judged and timed, with the machine's peak before and after it. Not: which cases, what is
// printed.
#pragma once

#include <chrono>
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
  Timing time;
  std::optional<Timing> plain;  ///< Limit::kPlain
  std::optional<Judgement> judgement;
  Peak before, after, peak;  ///< peak: the larger of the two
  double flops = 0, bytes = 0, plain_share = 1;
  std::string kernel;
  int repeats = 0;  ///< how often it was measured again because the two peaks differed

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
  /// As a fraction; 0: none.
  double goal() const;
  bool met() const { return fraction() >= goal(); }
  /// Whether the peaks before and after it are within 3 % of each other.
  bool steady() const;
};

/// What a run of many cases gives up when the machine is slower than it should be.
struct Patience {
  using Time = std::chrono::steady_clock::time_point;
  Time repeats = Time::max();  ///< after this no case is measured again
  Time runs = Time::max();     ///< after this a case has three runs
};

/// Throws std::runtime_error when the result is wrong. A case during which the peak moved by more than 3 % is measured
/// again, at most twice; the steadiest of the attempts counts.
Measured measure(const BenchCase& one, Context& context, PeakMeter& meter, const Patience& patience);

}  // namespace qkv::cli
