// `qkv bench`: cases as fractions of the machine's own peaks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bench/measure.h"
#include "core/escape.h"
#include "support/command.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> cases;
  std::string suite;  // empty: not given
  bool json = false, list = false, exact = false;
  ComputeOptions compute;

  std::string chosen_suite() const { return suite.empty() ? "quick" : suite; }
};

std::vector<BenchCase> all_cases() {
  std::vector<BenchCase> cases;
  for (std::vector<BenchCase> (*const group)() : {attention_cases, layer_cases, linear_attention_cases, form_cases}) {
    std::ranges::move(group(), std::back_inserter(cases));
  }
  return cases;
}

/// "quick", "full", then the groups.
std::vector<std::string> suite_names(const std::vector<BenchCase>& cases) {
  std::vector<std::string> names{"quick", "full"};
  for (const BenchCase& one : cases) {
    if (names.back() != one.group) names.push_back(one.group);
  }
  return names;
}

/// --suite quick: some of each, half a minute together.
constexpr std::string_view kQuick =
    " fwd-f32-d64-s100 fwd-f32-d64-s100-causal fwd-f32-d64-s128 fwd-f32-d64-s128-causal fwd-f32-d64-s1024 "
    "fwd-f32-d64-s1024-causal fwd-f32-d64-s4096-causal fwd-f32-d128-s2048 fwd-f64-d64-s1024 bwd-f32-d64-s100 "
    "bwd-f32-d64-s100-causal bwd-f32-d64-s128 bwd-f32-d64-s128-causal bwd-f32-d64-s1024 bwd-f32-d64-s1024-causal "
    "bwd-f64-d64-s1024 fwd-bf16-d64-s128 fwd-bf16-d64-s1024 bwd-bf16-d64-s128 bwd-bf16-d64-s1024 "
    "decode-f32-b1-tq1-s32768 decode-bf16-b1-tq1-s32768 decode-f32-b16-tq1-s512 dropout-f32-d64-s1024 "
    "bias-f32-d64-s1024 window128-f32-d64-s1024 lengths-f32-d64-s1024 weights-f32-d64-s512 linear-f32-1600x512x512 "
    "mha-fwd-f32-b16-t100-e512-h8 mha-fwdbwd-f32-b16-t100-e512-h8 mha-fwd-bf16-b16-t100-e512-h8 "
    "mha-fwdbwd-bf16-b16-t100-e512-h8 mha-fwd-f32-b1-t8-e64-h4 mha-fwdbwd-f32-b1-t8-e64-h4 lm-step lm-process "
    "linattn-causal-d64-s4096 linattn-causal-d64-s4096-bwd linattn-hybrid-d128-s2048 linattn-hybrid-d128-s2048-bwd ";
bool is_quick(const BenchCase& one) { return kQuick.find(" " + one.name + " ") != std::string_view::npos; }

bool in_suite(const BenchCase& one, const std::string& suite) {
  return suite == "full" || one.group == suite || (suite == "quick" && is_quick(one));
}

/// "fwd", "bwd", "decode", ...: what names begin with.
std::vector<std::string> beginnings(const std::vector<BenchCase>& cases) {
  std::vector<std::string> words;
  for (const BenchCase& one : cases) {
    const std::string word = one.name.substr(0, one.name.find('-'));
    if (std::ranges::find(words, word) == words.end()) words.push_back(word);
  }
  return words;
}

/// Those that are named; the suite when none is.
std::vector<BenchCase> chosen_cases(const BenchOptions& options) {
  const std::vector<BenchCase> all = all_cases();
  const std::vector<std::string> suites = suite_names(all);
  const std::string suite = options.chosen_suite();
  if (std::ranges::find(suites, suite) == suites.end()) {
    throw UsageError(fmt::format("--suite must be one of {}: got {}", fmt::join(suites, ", "), escaped(suite)));
  }
  const auto named = [&](const BenchCase& one, const std::string& name) {
    return options.exact ? one.name == name : one.name.starts_with(name);
  };
  for (const std::string& name : options.cases) {
    if (std::ranges::none_of(all, [&](const BenchCase& one) { return named(one, name); })) {
      throw UsageError(fmt::format("no case {} {}: names begin with {}; qkv bench --list shows them all",
          options.exact ? "is named" : "begins with", escaped(name), fmt::join(beginnings(all), ", ")));
    }
  }
  std::vector<BenchCase> chosen;
  std::ranges::copy_if(all, std::back_inserter(chosen), [&](const BenchCase& one) {
    if (options.cases.empty()) return in_suite(one, suite);
    return std::ranges::any_of(options.cases, [&](const std::string& name) { return named(one, name); });
  });
  return chosen;
}

int list_cases(const std::vector<BenchCase>& cases) {
  for (const BenchCase& one : cases) {
    print_line(fmt::format(
        "{:<31} {}", one.name, faint(fmt::format("{:<9} {}{}", one.group, one.shape, is_quick(one) ? "  quick" : ""))));
  }
  return 0;
}

int run_bench(const BenchOptions& options) {
  const ContextOptions compute = options.compute.context();  // also where it is not used: a wrong --isa is refused
  const std::vector<BenchCase> cases = chosen_cases(options);
  if (options.list) return list_cases(options.cases.empty() && options.suite.empty() ? all_cases() : cases);
  Context context(compute);
  PeakMeter meter(context);
  if (!options.json) print_bench_heading(context);
  std::vector<Measured> measured;
  for (const BenchCase& one : cases) {
    measured.push_back(measure(one, context, meter));
    if (!options.json) print_case(measured.back(), measured.size() > 1 ? &measured[measured.size() - 2] : nullptr);
  }
  Peak peak = meter.measure({.fma_f32 = true, .fma_f64 = true, .dot_bf16 = true, .read = true});
  for (const Measured& one : measured) peak = best_of(peak, one.peak);
  if (options.json) {
    print_json(bench_json(measured, peak, options.cases.empty() ? Json(options.chosen_suite()) : Json(), context));
  } else {
    print_summary(measured, peak);
  }
  return 0;
}

void declare_bench(Options& add, BenchOptions& options) {
  add("CASE", &options.cases, "Cases by name or its beginning, such as fwd-f32-d64 (default: the suite)");
  add("--suite NAME", &options.suite,
      "quick: half a minute; full: everything, minutes; or one group: forward, backward, bf16, decode, options, "
      "weights, "
      "layers, lm, linattn, caches, ragged",
      {.excludes = {"CASE"}});
  add("--exact", &options.exact, "Each CASE is a whole name, not a beginning", {.needs = "CASE"});
  add("--list", &options.list, "List the names of all cases, or of those in CASE or --suite");
  add.json(options.json, {.excludes = {"--list"}});
  add.compute(options.compute, 1);
}

const bool bench_added =
    add_command({"bench", "Speed as a fraction of this machine's own peak", "qkv bench fwd-f32-d64-s1024 --json"},
        declare_bench, run_bench);

}  // namespace
}  // namespace qkv::cli
