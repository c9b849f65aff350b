// The table of attention's cases: forward and backward over lengths and widths in four types, decoding, options
// and weights.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "bench/problem.h"

namespace qkv::cli {
namespace {

enum class Way { kForward, kBackward, kBoth };

/// Few queries on a long cache: read from memory, so each run takes the next of copies that together no cache of the
/// machine holds, as the layers of a model do.
bool decodes(const AttentionShape& s) { return s.q_len <= 16; }

template <class T> std::function<void()> runner(std::shared_ptr<AttentionProblem<T>> p, Way way, Context& context) {
  return [p, way, &context] {
    if (way != Way::kBackward) p->forward(context);
    if (way != Way::kForward) p->backward(context);
  };
}

template <class T> Prepared prepare(const AttentionShape& shape, Way way, Context& context) {
  const double bytes =
      decodes(shape)
          ? 2.0 * sizeof(T) * static_cast<double>(shape.batch * shape.kv_heads() * shape.kv_len * shape.head_dim)
          : 0;
  const auto p = std::make_shared<AttentionProblem<T>>(
      shape, way != Way::kForward, bytes > 0 ? static_cast<std::size_t>(kMemoryBytes / bytes) + 1 : 1);
  const AttentionPlan plan = p->plan(context);
  const double forward = shape.extra == Extra::kNone ? shape.forward_flops() : plan.forward_flops;
  if (way == Way::kBackward) p->forward(context);
  Prepared prepared{.run = runner(p, way, context),
      .flops = forward * (way == Way::kForward       ? 1
                             : way == Way::kBackward ? 2.5
                                                     : 3.5),
      .bytes = bytes,
      .kernel = kernel_text(plan)};
  if (shape.extra == Extra::kNone) return prepared;
  AttentionShape plain_shape = shape;
  plain_shape.extra = Extra::kNone;
  const auto plain = std::make_shared<AttentionProblem<T>>(plain_shape, way != Way::kForward);
  const auto live = [](const AttentionPlan& of) { return static_cast<double>(of.full_tiles + of.partial_tiles); };
  prepared.plain = runner(plain, way, context);
  prepared.plain_share = live(plan) / live(plain->plan(context));
  return prepared;
}

template <class T> BenchCase make_case(const char* group, const std::string& name, const char* type,
    const AttentionShape& shape, Way way, double goal = 0) {
  return {.name = name,
      .group = group,
      .shape = shape.text(),
      .type = type,
      .goal = goal,
      .prepare = [shape, way](Context& context) { return prepare<T>(shape, way, context); }};
}

/// Causal cases pay for their diagonal, short ones for their edges; exp2 in f64 is twice the terms on half the lanes.
double goal_of(const AttentionShape& s, bool backward, std::string_view type) {
  const auto of = [&](double full, double causal) { return s.causal ? causal : full; };
  const bool is_short = s.q_len < 1024, wide = s.head_dim >= 128;
  if (type == "f64") return is_short ? of(backward ? 0.45 : 0.50, 0.30) : of(0.60, backward ? 0.50 : 0.55);
  if (type != "f32")
    return is_short ? (backward ? 0.45 : 0.55) : backward ? 0.65 : wide ? of(0.84, 0.78) : of(0.78, 0.70);
  if (backward) return is_short ? of(0.66, 0.50) : of(0.82, 0.78);
  if (s.batch > 1) return of(0.72, 0.55);  // B 16, H 8, S 100: the articles' example
  return is_short ? of(0.80, 0.62) : of(wide ? 0.91 : 0.88, s.q_len >= 4096 ? 0.86 : 0.80);
}

/// About 2 GFLOP forward, so that a run is long enough to time and short enough to repeat.
AttentionShape square(Index length, Index head_dim, bool causal) {
  if (length == 100)
    return {.batch = 16, .num_heads = 8, .q_len = 100, .kv_len = 100, .head_dim = 64, .causal = causal};
  const Index heads = std::clamp<Index>((Index{8} << 20) / (length * length) * 64 / head_dim, 1, 64);
  return {.num_heads = heads, .q_len = length, .kv_len = length, .head_dim = head_dim, .causal = causal};
}

/// Full and causal at each length and width.
template <class T>
void add_squares(std::vector<BenchCase>& cases, const char* type, bool backward, std::initializer_list<Index> lengths) {
  const std::string_view name = type;
  for (const Index head_dim : {64, 128}) {
    for (const Index length : lengths) {
      if (head_dim == 128 && (length == 100 || (length < 1024 && name == "bf16"))) continue;
      for (const bool causal : {false, true}) {
        const AttentionShape s = square(length, head_dim, causal);
        cases.push_back(make_case<T>(sizeof(T) == 2 ? "bf16"
                                     : backward     ? "backward"
                                                    : "forward",
            fmt::format("{}-{}-d{}-s{}{}", backward ? "bwd" : "fwd", type, head_dim, length, causal ? "-causal" : ""),
            type, s, backward ? Way::kBackward : Way::kForward, goal_of(s, backward, type)));
      }
    }
  }
}

template <class T> BenchCase decode_case(const char* type, Index batch, Index q_len, Index kv_len) {
  const AttentionShape shape{.batch = batch,
      .num_heads = 32,
      .num_kv_heads = 8,
      .q_len = q_len,
      .kv_len = kv_len,
      .head_dim = 128,
      .causal = q_len > 1};
  return make_case<T>("decode", fmt::format("decode-{}-b{}-tq{}-s{}", type, batch, q_len, kv_len), type, shape,
      Way::kForward,
      q_len > 1        ? 0.70
      : sizeof(T) == 2 ? (batch > 1 ? 0.82 : 0.78)
                       : (batch > 1 ? 0.90 : 0.86));
}

/// Where frameworks leave their fused path: forward and backward beside the plain kernel's for the same live tiles.
BenchCase option_case(const char* name, Extra extra, const char* words, Index batch = 1, Index num_heads = 8) {
  const AttentionShape shape{
      .batch = batch, .num_heads = num_heads, .q_len = 1024, .kv_len = 1024, .head_dim = 64, .extra = extra};
  BenchCase one = make_case<float>("options", fmt::format("{}-f32-d64-s1024", name), "f32", shape, Way::kBoth, 0.8);
  one.shape += std::string(" ") + words;
  return one;
}

/// The output with all weights [B, H, T, T], beside the output alone.
BenchCase weights_case(Index length) {
  const AttentionShape shape{.num_heads = 8, .q_len = length, .kv_len = length, .head_dim = 64};
  const auto prepare = [shape](Context& context) {
    const auto p = std::make_shared<AttentionProblem<float>>(shape, false);
    const auto weights = std::make_shared<Tensor<float>>(std::vector<Index>{1, 8, shape.q_len, shape.kv_len});
    const auto run = [p, weights, &context] {
      attention_forward(p->q, p->k(), p->v(), {.out = p->out, .lse = p->lse, .weights = *weights}, p->options, context);
    };
    return Prepared{.run = run,
        .plain = [p, &context] { p->forward(context); },
        .flops = shape.forward_flops(),
        .kernel = kernel_text(p->plan(context))};
  };
  return {.name = fmt::format("weights-f32-d64-s{}", length),
      .group = "weights",
      .shape = shape.text(),
      .goal = 0.67,
      .prepare = prepare};
}

}  // namespace

std::vector<BenchCase> attention_cases() {
  std::vector<BenchCase> cases;
  for (const bool backward : {false, true}) {
    add_squares<float>(cases, "f32", backward, {100, 128, 512, 1024, 2048, 4096, 8192, 16384});
    add_squares<double>(cases, "f64", backward, {128, 1024, 4096});
    if (backward) break;
    // Rows of a table that attend to the rows with known answers (TabPFN).
    cases.push_back(make_case<float>("forward", "fwd-f32-d32-table", "f32",
        {.batch = 20, .num_heads = 6, .q_len = 1000, .kv_len = 5000, .head_dim = 32}, Way::kForward));
  }
  add_squares<BFloat16>(cases, "bf16", false, {100, 128, 1024, 4096, 16384});
  add_squares<BFloat16>(cases, "bf16", true, {100, 128, 1024, 4096});
  for (const bool backward : {false, true}) {
    cases.push_back(make_case<Float16>("bf16", backward ? "bwd-f16-d64-s1024" : "fwd-f16-d64-s1024", "f16",
        square(1024, 64, false), backward ? Way::kBackward : Way::kForward));
  }
  for (const auto& [batch, q_len, kv_len] : {std::array<Index, 3>{1, 1, 32768}, {16, 1, 512}, {1, 4, 32768}}) {
    cases.push_back(decode_case<float>("f32", batch, q_len, kv_len));
    cases.push_back(decode_case<BFloat16>("bf16", batch, q_len, kv_len));
  }
  cases.push_back(option_case("dropout", Extra::kDropout, "p 0.1"));
  cases.push_back(option_case("bias", Extra::kBias, "bias 1xHxTxT"));
  cases.push_back(option_case("window128", Extra::kWindow, "128 keys"));
  cases.push_back(option_case("lengths", Extra::kKeyLengths, "128..1024 keys", 8, 2));
  for (const Index length : {256, 512, 1024, 2048}) cases.push_back(weights_case(length));
  return cases;
}

}  // namespace qkv::cli
