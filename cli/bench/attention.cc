// Cases of attention, forward and backward, full and causal: the lengths and widths of the goals, and between them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/problem.h"

namespace qkv::cli {
namespace {

/// The goals, as fractions of the FMA peak: causal ones pay for their diagonal, short ones for their edges.
struct Goals {
  double full = 0, causal = 0;
};

Goals forward_goals(const AttentionShape& s) {
  if (s.batch > 1) return {0.72, 0.55};     // B 16, H 8, S 100: the articles' example
  if (s.q_len < 1024) return {0.80, 0.62};  // many heads of 128 to 512 tokens
  return {s.head_dim >= 128 ? 0.91 : 0.88, s.q_len >= 4096 ? 0.86 : 0.80};
}

Goals backward_goals(const AttentionShape& s) { return s.q_len < 1024 ? Goals{0.66, 0.50} : Goals{0.82, 0.78}; }

/// Of the peak of bf16 dot products, or of f32's multiply-adds on a CPU without them.
Goals half_goals(const AttentionShape& s, bool backward) {
  if (s.q_len < 1024) return backward ? Goals{0.45, 0.45} : Goals{0.55, 0.55};
  if (backward) return {0.65, 0.65};
  return s.head_dim >= 128 ? Goals{0.84, 0.78} : Goals{0.78, 0.70};
}

/// Of the f64 peak: exp2 costs twice the terms on half the lanes.
Goals f64_goals(const AttentionShape& s, bool backward) {
  if (s.q_len < 1024) return backward ? Goals{0.45, 0.30} : Goals{0.50, 0.30};
  return {0.60, 0.50 + (backward ? 0 : 0.05)};
}

template <class T>
Prepared prepare(const AttentionShape& shape, bool backward, Context& context) {
  auto problem = std::make_shared<AttentionProblem<T>>(shape, backward);
  Prepared prepared;
  prepared.flops = shape.forward_flops() * (backward ? 2.5 : 1);
  prepared.kernel = kernel_text(problem->plan(context));
  if (backward) {
    problem->forward(context);
    prepared.run = [problem, &context] { problem->backward(context); };
    prepared.judge = [shape, &context] { return judge_small<T>(shape, true, context); };
  } else {
    prepared.run = [problem, &context] { problem->forward(context); };
    prepared.judge = [problem] { return judge_rows(*problem); };
  }
  return prepared;
}

/// About 2 GFLOP forward, so that a run is long enough to time and short enough to repeat.
Index heads_for(Index length, Index head_dim) {
  return std::clamp<Index>(8 * 1024 * 1024 / (length * length) * 64 / head_dim, 1, 64);
}

template <class T>
BenchCase make_case(const AttentionShape& shape, bool backward, const std::string& type, bool quick) {
  const Goals goals = type == "f64"    ? f64_goals(shape, backward)
                      : sizeof(T) == 2 ? half_goals(shape, backward)
                      : backward       ? backward_goals(shape)
                                       : forward_goals(shape);
  return {.name = fmt::format("{}-{}-d{}-s{}{}", backward ? "bwd" : "fwd", type, shape.head_dim, shape.q_len,
                              shape.causal ? "-causal" : ""),
          .shape = shape.text(),
          .type = type,
          .quick = quick,
          .goal = shape.causal ? goals.causal : goals.full,
          .prepare = [shape, backward](Context& context) { return prepare<T>(shape, backward, context); }};
}

AttentionShape shape_of(Index length, Index head_dim, bool causal) {
  if (length == 100) return {.batch = 16, .num_heads = 8, .q_len = 100, .kv_len = 100, .head_dim = 64, .causal = causal};
  return {.num_heads = heads_for(length, head_dim), .q_len = length, .kv_len = length, .head_dim = head_dim, .causal = causal};
}

bool is_quick_f32(const AttentionShape& s, bool backward) {
  if (s.q_len < 1024) return s.head_dim == 64 && s.q_len != 512;
  if (s.head_dim == 128) return s.q_len == 2048 && !s.causal && !backward;
  return s.q_len == 1024 || (s.q_len == 4096 && s.causal && !backward);
}

std::vector<BenchCase> attention_cases(bool backward) {
  std::vector<BenchCase> cases;
  for (const Index head_dim : {64, 128}) {
    for (const Index length : {100, 128, 512, 1024, 2048, 4096, 8192, 16384}) {
      if (length == 100 && head_dim != 64) continue;
      for (const bool causal : {false, true}) {
        const AttentionShape shape = shape_of(length, head_dim, causal);
        cases.push_back(make_case<float>(shape, backward, "f32", is_quick_f32(shape, backward)));
      }
    }
  }
  for (const Index head_dim : {64, 128}) {
    for (const Index length : {128, 1024, 4096}) {
      for (const bool causal : {false, true}) {
        const bool quick = length == 1024 && head_dim == 64 && !causal;
        cases.push_back(make_case<double>(shape_of(length, head_dim, causal), backward, "f64", quick));
      }
    }
  }
  for (BenchCase& one : cases) one.group = backward ? "backward" : "forward";
  return cases;
}

}  // namespace

std::vector<BenchCase> forward_cases() {
  std::vector<BenchCase> cases = attention_cases(false);
  // Rows of a table that attend to the rows with known answers (TabPFN).
  const AttentionShape table{.batch = 20, .num_heads = 6, .q_len = 1000, .kv_len = 5000, .head_dim = 32};
  cases.push_back(make_case<float>(table, false, "f32", false));
  cases.back().name = "fwd-f32-d32-table", cases.back().group = "forward", cases.back().goal = 0;
  return cases;
}
std::vector<BenchCase> backward_cases() { return attention_cases(true); }

std::vector<BenchCase> half_cases() {
  std::vector<BenchCase> cases;
  for (const bool backward : {false, true}) {
    for (const Index head_dim : {64, 128}) {
      for (const Index length : {100, 128, 1024, 4096, 16384}) {
        if ((length < 1024 && head_dim != 64) || (length > 4096 && backward)) continue;
        for (const bool causal : {false, true}) {
          const bool quick = head_dim == 64 && (length == 128 || length == 1024) && !causal;
          cases.push_back(make_case<BFloat16>(shape_of(length, head_dim, causal), backward, "bf16", quick));
        }
      }
    }
    cases.push_back(make_case<Float16>(shape_of(1024, 64, false), backward, "f16", false));
  }
  for (BenchCase& one : cases) one.group = "bf16";
  return cases;
}

}  // namespace qkv::cli
