#include "bench/report.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "support/machine.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

std::string rate_text(const Measured& one) {
  if (one.bound_by_reading()) return fmt::format("{:8.2f} GB/s   ", one.gbs());
  return fmt::format("{:8.1f} GFLOP/s", one.gflops());
}

/// "77.1 % of fma", "1.12 x plain"
std::string share_text(const Measured& one) {
  if (one.what->limit == Limit::kPlain) return fmt::format("{:5.2f} x {:<9}", 1 / one.fraction(), one.of());
  return fmt::format("{:5.1f} % {:<9}", 100 * one.fraction(), one.of());
}

std::string goal_text(const Measured& one) {
  if (one.what->goal_ms > 0) return fmt::format("{:.4g} ms", one.what->goal_ms);
  if (one.goal() == 0) return "-";
  if (one.what->limit == Limit::kPlain) return fmt::format("{:.2f} x", 1 / one.goal());
  return fmt::format("{:.0f} %", 100 * one.goal());
}

Json peak_json(const Peak& peak) {
  const auto measured = [](double rate) { return rate > 0 ? Json(rate) : Json(); };
  return {{"fma_f32_gflops", measured(peak.fma_f32)}, {"fma_f64_gflops", measured(peak.fma_f64)},
      {"dot_bf16_gflops", measured(peak.dot_bf16)}, {"read_gbs", measured(peak.read)}};
}

Json case_json(const Measured& one) {
  Json json{{"name", one.what->name}, {"group", one.what->group}, {"shape", one.what->shape}, {"dtype", one.what->type},
      {"ms", one.time.median_ms}, {"best_ms", one.time.best_ms}, {"worst_ms", one.time.worst_ms},
      {"spread", one.time.spread}, {"runs", one.time.runs}, {"gflops", one.gflops()},
      {"gbs", one.bytes > 0 ? Json(one.gbs()) : Json()}, {"fraction", one.fraction()}, {"of", one.of()},
      {"goal", one.goal() > 0 ? Json(one.goal()) : Json()}, {"met", one.goal() > 0 ? Json(one.met()) : Json()},
      {"peak", peak_json(one.peak)}, {"peak_moved", difference_of(one.before, one.after)}, {"repeats", one.repeats},
      {"error", one.judgement ? Json(one.judgement->error) : Json()},
      {"bound", one.judgement ? Json(one.judgement->bound) : Json()},
      {"kernel", one.kernel.empty() ? Json() : Json(one.kernel)}};
  if (one.what->goal_ms > 0) json["goal_ms"] = one.what->goal_ms;
  if (one.plain) {
    json["plain_ms"] = one.plain->median_ms;
    json["live_tiles_share"] = one.plain_share;
  }
  return json;
}

}  // namespace

void print_bench_heading(const Context& context) {
  print_line(fmt::format("{}  {}, {}, {} thread{}", bold("qkv bench"), one_line(cpu_model()), isa_name(context.isa()),
      context.threads(), context.threads() == 1 ? "" : "s"));
}

void print_peak(std::string_view when, const Peak& peak) {
  const std::string dot = peak.dot_bf16 > 0 ? fmt::format("bf16 dot {:.1f} GFLOP/s, ", peak.dot_bf16) : "";
  print_line(faint(fmt::format("peak {:<6}  fma f32 {:.1f} GFLOP/s, f64 {:.1f} GFLOP/s, {}read {:.1f} GB/s", when,
      peak.fma_f32, peak.fma_f64, dot, peak.read)));
}

void print_case(const Measured& one, const Measured* previous) {
  if (previous == nullptr || previous->what->group != one.what->group) {
    print_line();
    print_line(faint(fmt::format("{:<31} {:<30} {:>10} {:>7} {:>16}  {:<17} {:>8}", one.what->group, "shape", "ms",
        "spread", "rate", "fraction of", "goal")));
  }
  const auto chosen = [](const std::string& kernel) {
    return kernel.substr(0, kernel.find(';'));
  };  // without the reasons
  if (!one.kernel.empty() && (previous == nullptr || chosen(previous->kernel) != chosen(one.kernel))) {
    print_line(faint("kernel: " + one.kernel));
  }
  const std::string share = share_text(one);
  const bool has_goal = one.goal() > 0;
  print_line(fmt::format("{:<31} {:<30} {:>10.4f} {:>5.1f} % {}  {} {:>8} {}{}", one.what->name, one.what->shape,
      one.time.median_ms, 100 * one.time.spread, rate_text(one), has_goal && one.met() ? bold(share) : share,
      goal_text(one),
      !has_goal   ? ""
      : one.met() ? "met"
                  : "not met",
      one.steady() ? "" : " *"));
  std::fflush(stdout);
}

void print_summary(std::span<const Measured> measured) {
  print_line();
  std::size_t goals = 0, met = 0, unsteady = 0;
  for (const Measured& one : measured) {
    goals += one.goal() > 0 ? 1 : 0;
    met += one.goal() > 0 && one.met() ? 1 : 0;
    unsteady += one.steady() ? 0 : 1;
  }
  print_line(fmt::format("{} of {} goals met", met, goals));
  if (unsteady > 0) {
    print_line(
        fmt::format("* {} of {} cases: the peak moved by more than 3 % while they ran, the machine was not quiet",
            unsteady, measured.size()));
  }
}

Json bench_json(std::span<const Measured> measured, const Peak& before, const Peak& after, const std::string& suite,
    const Context& context) {
  Peak best = best_of(before, after);
  Json cases = Json::array();
  for (const Measured& one : measured) {
    best = best_of(best, one.peak);
    cases.push_back(case_json(one));
  }
  Json peak = peak_json(best);
  peak["before"] = peak_json(before);
  peak["after"] = peak_json(after);
  return {{"cpu", cpu_model()}, {"isa", isa_name(context.isa())}, {"threads", context.threads()}, {"suite", suite},
      {"peak", std::move(peak)}, {"cases", std::move(cases)}};
}

}  // namespace qkv::cli
