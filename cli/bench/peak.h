// The machine's peaks, measured: independent multiply-adds and bf16 products in registers, and reading memory that no
// cache holds.
#pragma once

#include <cstdint>

#include "bench/bench.h"
#include "qkv/tensor.h"

namespace qkv::cli {

/// Which of the peaks a case needs.
struct PeakKinds {
  bool fma_f32 = true, fma_f64 = false, dot_bf16 = false, read = false;
};

/// Measures peaks again and again; keeps the 512 MiB that it reads from the first use on.
class PeakMeter {
 public:
  explicit PeakMeter(Context& context) : context_(context) {}

  /// About 0.1 s for each kind; the others stay 0.
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

}  // namespace qkv::cli
