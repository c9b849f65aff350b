#include "bench/measure.h"

#include <algorithm>
#include <chrono>

namespace qkv::cli {
namespace {

constexpr std::size_t kRuns = 10;      // at least
constexpr double kCaseSeconds = 0.25;  // more runs of short cases

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Timing timing_of(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const std::size_t n = seconds.size();
  const double median = n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
  return {1e3 * median, 1e3 * seconds.front(), 1e3 * seconds.back(), (seconds[3 * n / 4] - seconds[n / 4]) / median, n};
}

/// Runs the case and what it is compared with in turn, so that both meet the same state of the machine.
void time_runs(const Prepared& prepared, Measured& measured) {
  std::vector<double> times, plain_times;
  if (prepared.plain) prepared.plain();
  for (double total = 0; times.size() < kRuns || total < kCaseSeconds; total += times.back()) {
    times.push_back(seconds_of(prepared.run));
    if (prepared.plain) plain_times.push_back(seconds_of(prepared.plain));
  }
  measured.time = timing_of(std::move(times));
  if (prepared.plain) measured.plain = timing_of(std::move(plain_times));
}

}  // namespace

const char* Measured::of() const {
  if (plain) return "plain";
  if (bound_by_reading()) return "bandwidth";
  return is_held_against_dot() ? "bf16 dot" : "fma";
}

double Measured::fraction() const {
  if (plain) return plain->median_ms * plain_share / time.median_ms;
  return bound_by_reading() ? gbs() / peak.read : gflops() / fma();
}

Measured measure(const BenchCase& one, Context& context, PeakMeter& meter) {
  const Prepared prepared = one.prepare(context);
  Measured measured{.what = &one,
      .flops = prepared.flops,
      .bytes = prepared.bytes,
      .plain_share = prepared.plain_share,
      .kernel = prepared.kernel};
  const bool is_f64 = one.type == "f64";
  const PeakKinds kinds{
      .fma_f32 = !is_f64, .fma_f64 = is_f64, .dot_bf16 = one.type == "bf16", .read = prepared.bytes > 0};
  prepared.run();  // the warm-up
  const Peak before = meter.measure(kinds);
  prepared.run();
  time_runs(prepared, measured);
  const Peak after = meter.measure(kinds);
  measured.peak = best_of(before, after);
  measured.peak_moved = difference_of(before, after);
  return measured;
}

}  // namespace qkv::cli
