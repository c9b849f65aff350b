// The peaks: multiply-adds and products of pairs in registers, and reading memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>

#include "bench/measure.h"
#include "dispatch/kernels.h"

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTries = 6;
constexpr double kTrySeconds = 0.005;
// Larger than the caches of most machines, and a prime: streams and threads are no power of two apart.
constexpr Index kReadBytes = Index{509} << 20;
constexpr int kReads = 2;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// GFLOP/s of `loop` on every thread at once: the best of several tries.
template <class T> double fma_rate(Context& context, double (*loop)(Index, T*)) {
  const auto try_once = [&](Index rounds) {
    std::vector<double> flops(static_cast<std::size_t>(context.threads()));
    const auto start = Clock::now();
    context.parallel_for(context.threads(), [&](Index item, int) {
      alignas(64) T sink[64];
      flops[static_cast<std::size_t>(item)] = loop(rounds, sink);
    });
    const double seconds = seconds_since(start);
    return std::pair(std::accumulate(flops.begin(), flops.end(), 0.0) / seconds / 1e9, seconds);
  };
  Index rounds = 1 << 12;
  double best = 0;
  for (double seconds = 0; seconds < kTrySeconds; rounds *= 2) std::tie(best, seconds) = try_once(rounds);
  for (int n = 0; n < kTries; ++n) best = std::max(best, try_once(rounds).first);
  return best;
}

}  // namespace

/// GB/s of adding up the memory, each thread its own part; the best of the instruction set's loops.
double PeakMeter::read_rate() {
  if (memory_.count() == 0) memory_ = Tensor<std::uint64_t>({kReadBytes / Index{sizeof(std::uint64_t)}});
  const Index part = memory_.count() / context_.threads();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(context_.threads()));
  double best = 0;
  for (const ReadLoop sum : std::span(kernel_tables(context_.isa()).attention.peak.read, kNumReadLoops)) {
    const auto start = Clock::now();
    context_.parallel_for(context_.threads(),
        [&](Index item, int) { sums[static_cast<std::size_t>(item)] = sum(memory_.data() + item * part, part); });
    const double seconds = seconds_since(start);
    // The sum is used, so that reading cannot be left out: the memory holds zeros.
    if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) != 0) return 0;
    best = std::max(best, static_cast<double>(part * context_.threads()) * sizeof(std::uint64_t) / seconds / 1e9);
  }
  return best;
}

Peak PeakMeter::measure(const PeakKinds& kinds) {
  const PeakKernels& kernels = kernel_tables(context_.isa()).attention.peak;
  Peak peak;
  if (kinds.fma_f32) peak.fma_f32 = fma_rate<float>(context_, kernels.fma_f32);
  if (kinds.fma_f64) peak.fma_f64 = fma_rate<double>(context_, kernels.fma_f64);
  if (kinds.dot_bf16 && kernels.dot_bf16 != nullptr) peak.dot_bf16 = fma_rate<float>(context_, kernels.dot_bf16);
  for (int n = 0; kinds.read && n < kReads; ++n) peak.read = std::max(peak.read, read_rate());
  return peak;
}

Peak best_of(const Peak& a, const Peak& b) {
  return {std::max(a.fma_f32, b.fma_f32), std::max(a.fma_f64, b.fma_f64), std::max(a.dot_bf16, b.dot_bf16),
      std::max(a.read, b.read)};
}

double difference_of(const Peak& a, const Peak& b) {
  const auto difference = [](double x, double y) { return x > 0 && y > 0 ? std::abs(x - y) / std::max(x, y) : 0; };
  return std::max({difference(a.fma_f32, b.fma_f32), difference(a.fma_f64, b.fma_f64),
      difference(a.dot_bf16, b.dot_bf16), difference(a.read, b.read)});
}

}  // namespace qkv::cli
