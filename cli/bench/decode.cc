// Cases of decoding: few new queries against a long cache. The cache is read from memory, so each run takes the next of several
// copies that together no cache of the machine holds, as the layers of a model do.
#include <fmt/format.h>

#include <memory>

#include "bench/problem.h"

namespace qkv::cli {
namespace {

template <class T>
Prepared prepare(const AttentionShape& shape, Context& context) {
  const double cache_bytes =
      2.0 * sizeof(T) * static_cast<double>(shape.batch * shape.kv_heads() * shape.kv_len * shape.head_dim);
  auto problem = std::make_shared<AttentionProblem<T>>(shape, false, static_cast<std::size_t>(kMemoryBytes / cache_bytes) + 1);
  const auto run = [problem, &context] {
    problem->next_copy();
    problem->forward(context);
  };
  return {.run = run,
          .judge = [problem] { return judge_rows(*problem); },
          .flops = shape.forward_flops(),
          .bytes = cache_bytes,
          .kernel = kernel_text(problem->plan(context))};
}

template <class T>
BenchCase make_case(const AttentionShape& shape, const std::string& type, double goal, bool quick) {
  return {.name = fmt::format("decode-{}-b{}-tq{}-s{}", type, shape.batch, shape.q_len, shape.kv_len),
          .group = "decode",
          .shape = shape.text(),
          .type = type,
          .quick = quick,
          .goal = goal,
          .prepare = [shape](Context& context) { return prepare<T>(shape, context); }};
}

AttentionShape decode_shape(Index batch, Index q_len, Index kv_len) {
  return {.batch = batch,
          .num_heads = 32,
          .num_kv_heads = 8,
          .q_len = q_len,
          .kv_len = kv_len,
          .head_dim = 128,
          .causal = q_len > 1};
}

}  // namespace

std::vector<BenchCase> decode_cases() {
  std::vector<BenchCase> cases;
  cases.push_back(make_case<float>(decode_shape(1, 1, 32768), "f32", 0.90, true));
  cases.push_back(make_case<BFloat16>(decode_shape(1, 1, 32768), "bf16", 0.90, true));
  cases.push_back(make_case<float>(decode_shape(16, 1, 512), "f32", 0.70, true));
  cases.push_back(make_case<BFloat16>(decode_shape(16, 1, 512), "bf16", 0.70, false));
  cases.push_back(make_case<float>(decode_shape(1, 4, 32768), "f32", 0.70, false));
  cases.push_back(make_case<BFloat16>(decode_shape(1, 4, 32768), "bf16", 0.70, false));
  return cases;
}

}  // namespace qkv::cli
