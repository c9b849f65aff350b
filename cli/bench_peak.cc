// The peaks: independent multiply-adds in registers, and a pass over memory that no cache holds.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "bench.h"
#include "dispatch/kernels.h"
#include "qkv/tensor.h"

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTries = 8;
constexpr double kTrySeconds = 0.01;
constexpr Index kReadBytes = Index{512} << 20;  // larger than the caches of most machines

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// GFLOP/s of `loop` on every thread at once: the best of several tries.
template <class T>
double fma_rate(Context& context, double (*loop)(KernelIndex, T*)) {
  const auto try_once = [&](KernelIndex rounds) {
    std::vector<double> flops(static_cast<std::size_t>(context.threads()));
    const auto start = Clock::now();
    context.parallel_for(context.threads(), [&](Index item, int) {
      alignas(64) T sink[64];
      flops[static_cast<std::size_t>(item)] = loop(rounds, sink);
    });
    const double seconds = seconds_since(start);
    return std::pair(std::accumulate(flops.begin(), flops.end(), 0.0) / seconds / 1e9, seconds);
  };
  KernelIndex rounds = 1 << 12;
  double best = 0;
  for (double seconds = 0; seconds < kTrySeconds; rounds *= 2) std::tie(best, seconds) = try_once(rounds);
  for (int n = 0; n < kTries; ++n) best = std::max(best, try_once(rounds).first);
  return best;
}

/// GB/s of adding up `memory`, each thread its own part.
double read_rate(Context& context, const Tensor<std::uint64_t>& memory) {
  const Index part = memory.count() / context.threads();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(context.threads()));
  const auto start = Clock::now();
  context.parallel_for(context.threads(), [&](Index item, int) {
    const auto words = memory.span().subspan(static_cast<std::size_t>(item * part), static_cast<std::size_t>(part));
    sums[static_cast<std::size_t>(item)] = std::accumulate(words.begin(), words.end(), std::uint64_t{0});
  });
  const double seconds = seconds_since(start);
  // The sum is used, so that reading cannot be left out: the memory holds zeros.
  if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) != 0) return 0;
  return static_cast<double>(part * context.threads()) * sizeof(std::uint64_t) / seconds / 1e9;
}

}  // namespace

Peak measure_peak(Context& context) {
  const PeakKernels& kernels = kernel_table(context.isa()).peak;
  Peak peak;
  peak.fma_f32 = fma_rate<float>(context, kernels.fma_f32);
  peak.fma_f64 = fma_rate<double>(context, kernels.fma_f64);
  const Tensor<std::uint64_t> memory({kReadBytes / Index{sizeof(std::uint64_t)}});
  for (int n = 0; n < 3; ++n) peak.read = std::max(peak.read, read_rate(context, memory));
  return peak;
}

template <class T>
Judgement judge(std::span<const T> got, std::span<const T> naive, std::span<const double> exact, double terms) {
  double error = 0, naive_error = 0;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const double difference = std::abs(static_cast<double>(got[n]) - exact[n]);
    error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(error, difference);
    naive_error = std::max(naive_error, std::abs(static_cast<double>(naive[n]) - exact[n]));
  }
  return {error, 3 * naive_error + 8 * static_cast<double>(std::numeric_limits<T>::epsilon()) * terms};
}
template Judgement judge<float>(std::span<const float>, std::span<const float>, std::span<const double>, double);
template Judgement judge<double>(std::span<const double>, std::span<const double>, std::span<const double>, double);

Judgement judge_sum(double got, double exact, double terms) {
  return {std::abs(got - exact), 8 * static_cast<double>(std::numeric_limits<float>::epsilon()) * terms};
}

Judgement worse(const Judgement& a, const Judgement& b) {
  if (!a.holds() || !b.holds()) return a.holds() ? b : a;
  return a.error * b.bound > b.error * a.bound ? a : b;
}

}  // namespace qkv::cli
