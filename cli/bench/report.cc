// The table of `qkv bench`, and its JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "bench/measure.h"
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
  if (one.plain) return fmt::format("{:5.2f} x {:<9}", 1 / one.fraction(), one.of());
  return fmt::format("{:5.1f} % {:<9}", 100 * one.fraction(), one.of());
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
      {"goal", one.what->goal > 0 ? Json(one.what->goal) : Json()}, {"peak", peak_json(one.peak)},
      {"peak_moved", one.peak_moved}, {"kernel", one.kernel.empty() ? Json() : Json(one.kernel)}};
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

void print_case(const Measured& one, const Measured* previous) {
  if (previous == nullptr || previous->what->group != one.what->group) {
    print_line();
    print_line(faint(fmt::format(
        "{:<31} {:<30} {:>10} {:>7} {:>16}  {}", one.what->group, "shape", "ms", "spread", "rate", "fraction of")));
  }
  const auto chosen = [](const std::string& kernel) {
    return kernel.substr(0, kernel.find(';'));
  };  // without the reasons
  if (!one.kernel.empty() && (previous == nullptr || chosen(previous->kernel) != chosen(one.kernel))) {
    print_line(faint("kernel: " + one.kernel));
  }
  print_line(fmt::format("{:<31} {:<30} {:>10.4f} {:>5.1f} % {}  {}{}", one.what->name, one.what->shape,
      one.time.median_ms, 100 * one.time.spread, rate_text(one), share_text(one), one.steady() ? "" : " *"));
  std::fflush(stdout);
}

void print_summary(std::span<const Measured> measured, const Peak& peak) {
  print_line();
  const auto unsteady = std::ranges::count_if(measured, [](const Measured& one) { return !one.steady(); });
  if (unsteady > 0) {
    print_line(
        fmt::format("* {} of {} cases: the peak moved by more than 3 % while they ran, the machine was not quiet",
            unsteady, measured.size()));
  }
  const std::string dot = peak.dot_bf16 > 0 ? fmt::format("bf16 dot {:.1f} GFLOP/s, ", peak.dot_bf16) : "";
  print_line(faint(fmt::format("peak: fma f32 {:.1f} GFLOP/s, f64 {:.1f} GFLOP/s, {}read {:.1f} GB/s", peak.fma_f32,
      peak.fma_f64, dot, peak.read)));
}

Json bench_json(std::span<const Measured> measured, const Peak& peak, const Json& suite, const Context& context) {
  Json cases = Json::array();
  for (const Measured& one : measured) cases.push_back(case_json(one));
  return {{"cpu", cpu_model()}, {"isa", isa_name(context.isa())}, {"threads", context.threads()}, {"suite", suite},
      {"peak", peak_json(peak)}, {"cases", std::move(cases)}};
}

}  // namespace qkv::cli
