#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kCaseSeconds = 0.25;  // more runs of short cases
constexpr std::size_t kFewRuns = 3;
constexpr double kSteady = 0.03;  // by how much the peak may move
constexpr int kRepeats = 2;

double seconds_of(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Timing timing_of(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const std::size_t n = seconds.size();
  const double median = n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
  return {1e3 * median, 1e3 * seconds.front(), 1e3 * seconds.back(), (seconds[3 * n / 4] - seconds[n / 4]) / median, n};
}

/// Runs the case and what it is compared with in turn, so that both meet the same state of the machine.
void time_runs(const BenchCase& one, const Prepared& prepared, const Patience& patience, Measured& measured) {
  std::vector<double> times, plain_times;
  if (prepared.plain) prepared.plain();
  const auto wanted = [&](double total) {
    if (Clock::now() > patience.runs) return times.size() < std::min(one.runs, kFewRuns);
    return times.size() < one.runs || (one.runs > 1 && total < kCaseSeconds);
  };
  for (double total = 0; wanted(total); total += times.back()) {
    times.push_back(seconds_of(prepared.run));
    if (prepared.plain) plain_times.push_back(seconds_of(prepared.plain));
  }
  measured.time = timing_of(std::move(times));
  if (prepared.plain) measured.plain = timing_of(std::move(plain_times));
}

void hold_against_textbook(const BenchCase& one, const Prepared& prepared, Measured& measured) {
  if (!prepared.judge) return;
  measured.judgement = prepared.judge();
  if (measured.judgement->holds()) return;
  throw std::runtime_error(
      fmt::format("{} is wrong: it differs from the textbook by {:.3g}, at most {:.3g} is rounding", one.name,
          measured.judgement->error, measured.judgement->bound));
}

Measured measure_once(const BenchCase& one, Context& context, PeakMeter& meter, const Patience& patience) {
  Measured measured;
  measured.what = &one;
  const Prepared prepared = one.prepare(context);
  measured.flops = prepared.flops;
  measured.bytes = prepared.bytes;
  measured.plain_share = prepared.plain_share;
  measured.kernel = prepared.kernel;
  const bool is_f64 = one.type == "f64";
  const PeakKinds kinds{
      .fma_f32 = !is_f64, .fma_f64 = is_f64, .dot_bf16 = one.type == "bf16", .read = prepared.bytes > 0};
  prepared.run();  // also the warm-up
  hold_against_textbook(one, prepared, measured);
  measured.before = meter.measure(kinds);
  prepared.run();
  time_runs(one, prepared, patience, measured);
  measured.after = meter.measure(kinds);
  measured.peak = best_of(measured.before, measured.after);
  return measured;
}

}  // namespace

const char* Measured::of() const {
  if (what->limit == Limit::kPlain) return "plain";
  if (bound_by_reading()) return "bandwidth";
  return is_held_against_dot() ? "bf16 dot" : "fma";
}

double Measured::fraction() const {
  if (what->limit == Limit::kPlain) return plain->median_ms * plain_share / time.median_ms;
  return bound_by_reading() ? gbs() / peak.read : gflops() / fma();
}

double Measured::goal() const { return what->goal_ms > 0 ? flops / what->goal_ms / 1e6 / fma() : what->goal; }

bool Measured::steady() const { return difference_of(before, after) <= kSteady; }

Measured measure(const BenchCase& one, Context& context, PeakMeter& meter, const Patience& patience) {
  Measured best = measure_once(one, context, meter, patience);
  for (int repeats = 1; repeats <= kRepeats && !best.steady() && Clock::now() < patience.repeats; ++repeats) {
    Measured again = measure_once(one, context, meter, patience);
    if (difference_of(again.before, again.after) < difference_of(best.before, best.after)) best = std::move(again);
    best.repeats = repeats;
  }
  return best;
}

}  // namespace qkv::cli
