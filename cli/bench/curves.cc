// How cost grows with the length: as its square without a mask, as its product with the window where there is one; and how much
// memory 131,072 tokens take.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "bench/problem.h"

namespace qkv::cli {
namespace {

constexpr Index kWindow = 512;

Prepared prepare_forward(const AttentionShape& shape, Context& context) {
  auto problem = std::make_shared<AttentionProblem<float>>(shape, false);
  const AttentionPlan plan = problem->plan(context);
  return {.run = [problem, &context] { problem->forward(context); },
          .judge = [problem] { return judge_rows(*problem); },
          .flops = plan.forward_flops,
          .kernel = kernel_text(plan)};
}

BenchCase curve_case(Index length, bool window) {
  const AttentionShape shape{
      .q_len = length, .kv_len = length, .head_dim = 64, .extra = window ? Extra::kWindow : Extra::kNone, .window = kWindow};
  const std::string curve = window ? fmt::format("window{}", kWindow) : "full";
  return {.name = fmt::format("curve-{}-s{}", curve, length),
          .group = "curves",
          .shape = shape.text() + (window ? fmt::format(" {} keys", kWindow) : ""),
          .curve = curve,
          .length = static_cast<double>(length),
          .prepare = [shape](Context& context) { return prepare_forward(shape, context); }};
}

/// Kilobytes of a line such as "VmHWM:    1234 kB" of /proc/self/status; -1 where there is none.
double status_kb(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1));
  }
  return -1;
}

/// Bytes that the process holds in memory now, and from here on the most that it held.
double start_watching_memory() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM starts again at VmRSS
  const double now = status_kb("VmRSS");
  if (now < 0 || status_kb("VmHWM") > 1.01 * now)
    throw std::runtime_error("memory: this system does not report the memory of a process");
  return 1024 * now;
}

/// A run makes the tensors and attends; the peak of memory is read by the measurement (Limit::kMemory).
BenchCase memory_case() {
  const AttentionShape shape{.q_len = 131072, .kv_len = 131072, .head_dim = 64, .causal = true};
  return {.name = "memory-f32-d64-s131072-causal",
          .group = "curves",
          .shape = shape.text(),
          .limit = Limit::kMemory,
          .goal = 0.95,  // "little more than q, k, v, out"
          .runs = 1,
          .prepare = [shape](Context& context) {
            const double before = start_watching_memory();
            auto problem = std::make_shared<AttentionProblem<float>>(shape, false);
            const double tensors = 4.0 * sizeof(float) * static_cast<double>(shape.q_len * shape.head_dim);  // q, k, v, out
            return Prepared{.run = [problem, &context] { problem->forward(context); },
                            .judge = [problem] { return judge_rows(*problem); },
                            .flops = shape.forward_flops(),
                            .tensor_bytes = tensors,
                            .peak_bytes = [before] { return 1024 * status_kb("VmHWM") - before; }};
          }};
}

}  // namespace

std::vector<BenchCase> curve_cases() {
  std::vector<BenchCase> cases;
  for (Index length = 1024; length <= 16384; length *= 2) cases.push_back(curve_case(length, false));
  for (Index length = 2048; length <= 131072; length *= 4) cases.push_back(curve_case(length, true));
  cases.push_back(memory_case());
  return cases;
}

}  // namespace qkv::cli
