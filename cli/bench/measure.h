// How a case is measured: timed, with the machine's peak before and after it; and what `qkv bench` says of it, a table
// for people, one JSON document for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "bench/bench.h"
#include "support/json.h"

namespace qkv::cli {

/// The best that this machine can do with the chosen threads and instruction set. 0: not measured, or not there.
struct Peak {
  double fma_f32 = 0, fma_f64 = 0;  ///< GFLOP/s of independent multiply-adds
  double dot_bf16 = 0;              ///< GFLOP/s of independent products of bf16 pairs
  double read = 0;                  ///< GB/s of reading memory that no cache holds
};

/// The peaks that a case needs.
struct PeakKinds {
  bool fma_f32 = true, fma_f64 = false, dot_bf16 = false, read = false;
};

/// Measures peaks again and again; keeps the 509 MiB that it reads from the first use on.
class PeakMeter {
 public:
  explicit PeakMeter(Context& context) : context_(context) {}

  /// About 0.2 s for each kind; the others stay 0.
  Peak measure(const PeakKinds& kinds);

 private:
  double read_rate();

  Context& context_;
  Tensor<std::uint64_t> memory_;
};

/// The larger of each.
Peak best_of(const Peak& a, const Peak& b);
/// The largest difference of a peak that both have, as a fraction of the larger one.
double difference_of(const Peak& a, const Peak& b);

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

void print_bench_heading(const Context& context);
/// One line; a second one when the kernel differs from that of `previous`.
void print_case(const Measured& measured, const Measured* previous);
/// The peaks, and which cases the machine disturbed.
void print_summary(std::span<const Measured> measured, const Peak& peak);

Json bench_json(std::span<const Measured> measured, const Peak& peak, const Json& suite, const Context& context);

}  // namespace qkv::cli
