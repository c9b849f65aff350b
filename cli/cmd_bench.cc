// `qkv bench`: measures the machine's peaks, then cases as fractions of them. Each case is first held against the textbook.
// Not: comparisons with other libraries.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench.h"
#include "command.h"
#include "core/escape.h"
#include "json.h"
#include "machine.h"
#include "options.h"

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kRuns = 10;  // at least, unless that takes longer than kPatience
constexpr std::size_t kFewRuns = 3;
constexpr double kCaseSeconds = 0.4;  // more runs of short cases
constexpr double kPatience = 2.5;

struct BenchOptions {
  std::vector<std::string> cases;
  std::string suite = "quick";
  bool json = false, list = false;
  ComputeOptions compute;
};

struct Timing {
  double median_ms = 0, best_ms = 0;
  std::size_t runs = 0;
};

struct Measured {
  const BenchCase* what;
  Timing time;
  Judgement judgement;
};

Timing time_runs(const std::function<void()>& run) {
  std::vector<double> times;
  double total = 0;
  while ((times.size() < kRuns && (total < kPatience || times.size() < kFewRuns)) || total < kCaseSeconds) {
    const auto start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  }
  std::ranges::sort(times);
  const std::size_t middle = times.size() / 2;
  const double median = times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
  return {1e3 * median, 1e3 * times[0], times.size()};
}

std::vector<BenchCase> all_cases() {
  std::vector<BenchCase> cases = attention_cases();
  for (BenchCase& one : layer_cases()) cases.push_back(std::move(one));
  return cases;
}

/// Those whose names begin as one of the names given; the suite when none is.
std::vector<BenchCase> chosen_cases(const BenchOptions& options) {
  if (options.suite != "quick" && options.suite != "full") {
    throw UsageError("--suite must be quick or full: got " + escaped(options.suite));
  }
  std::vector<BenchCase> cases = all_cases();
  for (const std::string& name : options.cases) {
    if (std::ranges::none_of(cases, [&](const BenchCase& one) { return one.name.starts_with(name); })) {
      throw UsageError("no case begins with " + escaped(name) + ": qkv bench --list shows them all");
    }
  }
  std::erase_if(cases, [&](const BenchCase& one) {
    if (options.cases.empty()) return options.suite == "quick" && !one.quick;
    return std::ranges::none_of(options.cases, [&](const std::string& name) { return one.name.starts_with(name); });
  });
  return cases;
}

double peak_of(const Peak& peak, Of of) {
  return of == Of::kFmaF32 ? peak.fma_f32 : of == Of::kFmaF64 ? peak.fma_f64 : peak.read;
}

/// GFLOP/s, or GB/s for a case bound by memory.
double rate_of(const Measured& measured) { return measured.what->work / measured.time.median_ms / 1e6; }

double fraction_of(const Measured& measured, const Peak& peak) { return rate_of(measured) / peak_of(peak, measured.what->of); }

double goal_of(const BenchCase& one, const Peak& peak) {
  return one.goal_ms > 0 ? one.work / one.goal_ms / 1e6 / peak_of(peak, one.of) : one.goal;
}

Json peak_json(const Peak& peak) {
  return {{"fma_f32_gflops", peak.fma_f32}, {"fma_f64_gflops", peak.fma_f64}, {"read_gbs", peak.read}};
}

Json case_json(const Measured& measured, const Peak& peak) {
  const BenchCase& one = *measured.what;
  const bool bandwidth = one.of == Of::kBandwidth;
  Json json{{"name", one.name},
            {"ms", measured.time.median_ms},
            {"best_ms", measured.time.best_ms},
            {"runs", measured.time.runs},
            {"gflops", bandwidth ? Json() : Json(rate_of(measured))},
            {"fraction", fraction_of(measured, peak)},
            {"of", bandwidth ? "bandwidth" : "fma"},
            {"dtype", one.of == Of::kFmaF64 ? "f64" : "f32"},
            {"goal", goal_of(one, peak)},
            {"error", measured.judgement.error},
            {"bound", measured.judgement.bound}};
  if (bandwidth) json["gbs"] = rate_of(measured);
  return json;
}

void print_peak(const char* when, const Peak& peak) {
  print_line(faint(fmt::format("peak {:<6}  fma f32 {:.1f} GFLOP/s, f64 {:.1f} GFLOP/s, read {:.1f} GB/s", when, peak.fma_f32,
                               peak.fma_f64, peak.read)));
}

void print_case(const Measured& measured, const Peak& peak) {
  const BenchCase& one = *measured.what;
  const bool bandwidth = one.of == Of::kBandwidth;
  const double fraction = fraction_of(measured, peak), goal = goal_of(one, peak);
  const std::string share = fmt::format("{:5.1f} %", 100 * fraction);
  print_line(fmt::format("{:<30} {:>9.3f} ms {:>8.1f} {}  {} of {:<9}  {}", one.name, measured.time.median_ms,
                         rate_of(measured), bandwidth ? "GB/s   " : "GFLOP/s", fraction >= goal ? bold(share) : share,
                         bandwidth ? "bandwidth" : "fma", faint(fmt::format("goal {:.0f} %", 100 * goal))));
  std::fflush(stdout);
}

Measured measure(const BenchCase& one, Context& context) {
  const Prepared prepared = one.prepare(context);
  prepared.run();  // also the warm-up
  const Judgement judgement = prepared.judge();
  if (!judgement.holds()) {
    throw std::runtime_error(fmt::format("{} is wrong: it differs from the textbook by {:.3g}, at most {:.3g} is rounding",
                                         one.name, judgement.error, judgement.bound));
  }
  return {&one, time_runs(prepared.run), judgement};
}

int run(const BenchOptions& options) {
  const std::vector<BenchCase> cases = chosen_cases(options);
  if (options.list) {
    for (const BenchCase& one : all_cases()) print_line(one.name + (one.quick ? "  " + faint("quick") : ""));
    return 0;
  }
  Context context(options.compute.context());
  const Peak before = measure_peak(context);
  if (!options.json) {
    print_line(fmt::format("{}  {}, {}, {} thread{}", bold("qkv bench"), one_line(cpu_model()), isa_name(context.isa()),
                           context.threads(), context.threads() == 1 ? "" : "s"));
    print_peak("before", before);
    print_line();
  }
  std::vector<Measured> measured;
  for (const BenchCase& one : cases) {
    measured.push_back(measure(one, context));
    if (!options.json) print_case(measured.back(), before);
  }
  const Peak after = measure_peak(context);
  if (!options.json) {
    print_line();
    print_peak("after", after);
    return 0;
  }
  const Peak best{std::max(before.fma_f32, after.fma_f32), std::max(before.fma_f64, after.fma_f64),
                  std::max(before.read, after.read)};
  Json peak = peak_json(best);
  peak["before"] = peak_json(before);
  peak["after"] = peak_json(after);
  Json list = Json::array();
  for (const Measured& one : measured) list.push_back(case_json(one, best));
  print_json({{"cpu", cpu_model()},
              {"isa", isa_name(context.isa())},
              {"threads", context.threads()},
              {"suite", options.suite},
              {"peak", std::move(peak)},
              {"cases", std::move(list)}});
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  app.add_option("CASE", options->cases, "Cases by name or its beginning, such as fwd-f32-d64 (default: the suite)")
      ->type_name("NAME");
  app.add_option("--suite", options->suite, "quick: under 45 s; full: every length, width and type")->type_name("NAME");
  app.add_flag("--list", options->list, "Print the names of the cases");
  add_json_option(app, options->json);
  add_compute_options(app, options->compute, 1);
  app.get_option("--threads")->description("Threads (default 1: one thread decides how good a kernel is)");
  return [options] { return run(*options); };
}

const bool added =
    add_command({"bench", "Speed as a fraction of this machine's own peak", "qkv bench fwd-f32-d64-s1024 --json", declare});

}  // namespace
}  // namespace qkv::cli
