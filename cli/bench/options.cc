// Cases where frameworks leave their fused path: dropout, gradient of a bias, window, key lengths, forward and backward, held
// against the plain kernel's time for the same live tiles; and the output with all weights, or with a look at them on the way,
// held against the forward alone.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "bench/problem.h"

namespace qkv::cli {
namespace {

constexpr double kOptionWithinPlain = 1.25, kWithinForward = 1.5;
constexpr double kWithinOneSweep = 1.2, kWithinTwoSweeps = 1.6;  // of a capture

/// Kept pairs of queries and keys, all heads.
double live_pairs(const AttentionPlan& plan, Index head_dim) {
  return plan.forward_flops / (4 * static_cast<double>(head_dim));
}

double live_tiles(const AttentionPlan& plan) { return static_cast<double>(plan.full_tiles + plan.partial_tiles); }

Prepared prepare_option(const AttentionShape& shape, Context& context) {
  AttentionShape plain_shape = shape;
  plain_shape.extra = Extra::kNone;
  auto problem = std::make_shared<AttentionProblem<float>>(shape, true);
  auto plain = std::make_shared<AttentionProblem<float>>(plain_shape, true);
  const auto both_ways = [&context](const std::shared_ptr<AttentionProblem<float>>& p) {
    return [p, &context] {
      p->forward(context);
      p->backward(context);
    };
  };
  const AttentionPlan plan = problem->plan(context);
  return {.run = both_ways(problem),
          .judge = [shape, &context] { return judge_small<float>(shape, true, context); },
          .plain = both_ways(plain),
          .plain_share = live_tiles(plan) / live_tiles(plain->plan(context)),
          .flops = 3.5 * 4 * live_pairs(plan, shape.head_dim) * static_cast<double>(shape.head_dim),
          .kernel = kernel_text(plan)};
}

BenchCase option_case(const std::string& name, const AttentionShape& shape, const std::string& words) {
  return {.name = fmt::format("{}-f32-d{}-s{}", name, shape.head_dim, shape.q_len),
          .group = "options",
          .shape = shape.text() + " " + words,
          .quick = true,
          .limit = Limit::kPlain,
          .goal = 1 / kOptionWithinPlain,
          .prepare = [shape](Context& context) { return prepare_option(shape, context); }};
}

/// The output and the weights [B, H, T, T] of the same call.
Prepared prepare_weights(const AttentionShape& shape, Context& context) {
  auto problem = std::make_shared<AttentionProblem<float>>(shape, false);
  auto weights = std::make_shared<Tensor<float>>(std::vector<Index>{shape.batch, shape.num_heads, shape.q_len, shape.kv_len});
  Prepared prepared;
  prepared.run = [problem, weights, &context] {
    attention_forward(problem->q, problem->k(), problem->v(), {.out = problem->out, .lse = problem->lse, .weights = *weights},
                      problem->options, context);
  };
  prepared.judge = [problem, weights] {
    double sum = 0;  // of a middle row of the last head: 1
    const Index row = weights->count() / problem->shape.kv_len - problem->shape.q_len / 2;
    for (Index j = 0; j < problem->shape.kv_len; ++j) {
      sum += static_cast<double>(weights->data()[row * problem->shape.kv_len + j]);
    }
    return worse(judge_rows(*problem), judge_sum(sum, 1, 1));
  };
  prepared.plain = [problem, &context] { problem->forward(context); };
  prepared.flops = shape.forward_flops();
  prepared.kernel = kernel_text(problem->plan(context));
  return prepared;
}

/// The output and what `look` asks for.
Prepared prepare_capture(const AttentionShape& shape, const Capture& look, Context& context) {
  auto problem = std::make_shared<AttentionProblem<float>>(shape, false);
  auto seen = std::make_shared<CaptureResult>();
  Prepared prepared;
  prepared.run = [problem, seen, look, &context] {
    AttentionOptions options = problem->options;
    options.capture = {look, *seen};
    attention_forward(problem->q, problem->k(), problem->v(), {.out = problem->out, .lse = problem->lse}, options, context);
  };
  prepared.judge = [problem, seen] {
    Judgement worst = judge_rows(*problem);
    for (const Tensor<double>* sums : {&seen->column_mass, &seen->map}) {  // each row of weights sums to 1
      double sum = 0;
      for (const double x : sums->span()) sum += x;
      const auto rows = static_cast<double>(problem->lse.count());
      if (sums->count() > 0) worst = worse(worst, judge_sum(sum / rows, 1, 1));
    }
    return worst;
  };
  prepared.plain = [problem, &context] { problem->forward(context); };
  prepared.flops = shape.forward_flops();
  prepared.kernel = kernel_text(problem->plan(context));
  return prepared;
}

std::vector<BenchCase> capture_cases() {
  std::vector<BenchCase> cases;
  const auto add = [&cases](const char* what, Index length, double within, const Capture& look) {
    const AttentionShape shape{.num_heads = length > 4096 ? 1 : 2, .q_len = length, .kv_len = length, .head_dim = 64};
    BenchCase one;
    one.name = fmt::format("capture-{}-f32-d64-s{}", what, length);
    one.group = "weights";
    one.shape = shape.text();
    one.limit = Limit::kPlain;
    one.goal = 1 / within;
    one.runs = length > 4096 ? 3 : 10;
    one.prepare = [shape, look](Context& context) { return prepare_capture(shape, look, context); };
    cases.push_back(std::move(one));
  };
  for (const Index length : {4096, 65536}) {
    add("statistics", length, kWithinOneSweep, {.statistics = true});
    add("columns", length, kWithinTwoSweeps, {.column_mass = true});
    add("map", length, kWithinTwoSweeps, {.map_rows = 64, .map_columns = 64});
    add("rows", length, kWithinTwoSweeps, {.rows = {0, length / 3, length - 1}});
    add("top8", length, kWithinTwoSweeps, {.top_k = 8});
  }
  return cases;
}

}  // namespace

std::vector<BenchCase> option_cases() {
  const auto shape = [](Extra extra, Index batch = 1, Index num_heads = 8) {
    return AttentionShape{
        .batch = batch, .num_heads = num_heads, .q_len = 1024, .kv_len = 1024, .head_dim = 64, .extra = extra};
  };
  return {option_case("dropout", shape(Extra::kDropout), "p 0.1"), option_case("bias", shape(Extra::kBias), "bias 1xHxTxT"),
          option_case("window128", shape(Extra::kWindow), "128 keys"),
          option_case("lengths", shape(Extra::kKeyLengths, 8, 2), "128..1024 keys")};
}

std::vector<BenchCase> weights_cases() {
  std::vector<BenchCase> cases;
  for (const Index length : {256, 512, 1024, 2048}) {
    const AttentionShape shape{.num_heads = 8, .q_len = length, .kv_len = length, .head_dim = 64};
    BenchCase one;
    one.name = fmt::format("weights-f32-d64-s{}", length);
    one.group = "weights";
    one.shape = shape.text();
    one.quick = length == 512;
    one.limit = Limit::kPlain;
    one.goal = 1 / kWithinForward;
    one.prepare = [shape](Context& context) { return prepare_weights(shape, context); };
    cases.push_back(std::move(one));
  }
  std::ranges::move(capture_cases(), std::back_inserter(cases));
  return cases;
}

}  // namespace qkv::cli
