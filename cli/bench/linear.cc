// Cases of linear attention: its forms at one length, forward and backward. Flops: 4 F Dv for each token and head with
// the state, and (F + Dv) for each pair of a chunk that causal keeps; 2.5 times that backward, as attention's are
// counted; the delta rule's triangular solve beside them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/bench.h"
#include "bench/judge.h"
#include "core/random.h"
#include "kernels/linear_attention/params.h"
#include "qkv/linear_attention.h"
#include "reference/linear_backward.h"
#include "support/converted.h"

namespace qkv::cli {
namespace {

enum class Kind {
  kFree,
  kCausal,
  kDecay,
  kDelta,
  kHybrid  ///< the delta rule with decay over keys and queries of length 1, as hybrid models call it (Qwen3-Next)
};
constexpr const char* kNames[] = {"full", "causal", "decay", "delta", "hybrid"};
constexpr double kChunk = kLinearCausalChunk;

struct LinearShape {
  Kind kind = Kind::kCausal;
  Index num_heads = 1, length = 0, head_dim = 64;
  bool backward = false;

  bool decays() const { return kind == Kind::kDecay || kind == Kind::kHybrid; }
  bool delta() const { return kind == Kind::kDelta || kind == Kind::kHybrid; }
  double flops() const {
    const double width = static_cast<double>(head_dim), tokens = static_cast<double>(num_heads * length);
    double each = 4 * width * width;
    if (kind != Kind::kFree) each += 2 * kChunk * width;
    if (delta()) each += 2 * width * width + 2 * kChunk * width;
    return each * tokens * (backward ? 2.5 : 1);
  }
};

constexpr Index kSmallLength = 160;  // of the problem that the textbook computes

struct LinearProblem {
  Tensor<float> q, k, v, out, dout, dq, dk, dv;          // [1, H, T, D]
  Tensor<float> normalizer, beta, decay, dbeta, ddecay;  // [1, H, T]
  LinearAttentionOptions<float> options;
  LinearAttentionGradients<float> gradients;
  View<float, 3> n;

  explicit LinearProblem(const LinearShape& s) {
    const std::vector<Index> sizes{1, s.num_heads, s.length, s.head_dim}, rows{1, s.num_heads, s.length};
    Random random(3);
    const auto drawn = [&](const std::vector<Index>& of, double from, double to) {
      Tensor<float> x(of);
      for (float& value : x.span()) value = static_cast<float>(from + (to - from) * random.uniform());
      return x;
    };
    const double keys = s.delta() ? 1.5 / std::sqrt(static_cast<double>(s.head_dim)) : 1;
    q = drawn(sizes, -1, 1), k = drawn(sizes, -keys, keys), v = drawn(sizes, -1, 1), out = Tensor<float>(sizes);
    options.causal = s.kind != Kind::kFree;
    options.normalized = s.kind == Kind::kFree || s.kind == Kind::kCausal;
    if (!options.normalized) options.feature_map = s.kind == Kind::kHybrid ? FeatureMap::kUnit : FeatureMap::kIdentity;
    if (options.normalized && s.backward) normalizer = Tensor<float>(rows), n = normalizer;
    if (s.delta()) options.beta = beta = drawn(rows, 0, 1);
    if (s.decays()) options.log_decay = decay = drawn(rows, -0.05, 0);
    if (!s.backward) return;
    dout = drawn(sizes, -1, 1);
    gradients.dq = dq = Tensor<float>(sizes), gradients.dk = dk = Tensor<float>(sizes),
    gradients.dv = dv = Tensor<float>(sizes);
    if (s.delta()) gradients.dbeta = dbeta = Tensor<float>(rows);
    if (s.decays()) gradients.dlog_decay = ddecay = Tensor<float>(rows);
  }

  void forward(Context& context) { linear_attention_forward(q, k, v, out, n, options, {}, context); }
  void backward(Context& context) {
    linear_attention_backward(q, k, v, out, View<const float, 3>(n), dout, gradients, options, context);
  }

  /// The textbook's out and, with a dout, gradients.
  template <class N> auto textbook() const {
    const Tensor<N> q_n = converted<N>(q), k_n = converted<N>(k), v_n = converted<N>(v), beta_n = converted<N>(beta),
                    decay_n = converted<N>(decay);
    reference::LinearOptions<N> book;
    book.map = options.feature_map, book.causal = options.causal, book.normalized = options.normalized;
    if (beta.count() > 0) book.beta = beta_n.template view<3>();
    if (decay.count() > 0) book.log_decay = decay_n.template view<3>();
    std::vector<Tensor<N>> all;
    all.push_back(std::move(reference::linear_attention_recurrent<N>(q_n, k_n, v_n, book).out));
    if (dout.count() == 0) return all;
    auto back = reference::linear_attention_backward<N>(q_n, k_n, v_n, converted<N>(dout), {}, {}, book);
    for (Tensor<N>* gradient : {&back.dq, &back.dk, &back.dv}) all.push_back(std::move(*gradient));
    return all;
  }
};

/// The same kind with one head and few tokens.
Judgement judge_small(LinearShape shape, Context& context) {
  shape.num_heads = 1, shape.length = std::min(shape.length, kSmallLength);
  LinearProblem problem(shape);
  problem.forward(context);
  if (shape.backward) problem.backward(context);
  const std::vector<Tensor<double>> exact = problem.textbook<double>();
  const std::vector<Tensor<float>> naive = problem.textbook<float>();
  const Tensor<float>* const results[] = {&problem.out, &problem.dq, &problem.dk, &problem.dv};
  Judgement worst;
  for (std::size_t m = 0; m < exact.size(); ++m) {
    double largest = 0;
    for (const double x : exact[m].span()) largest = std::max(largest, std::abs(x));
    worst = worse(worst, judge(converted<double>(*results[m]).span(), converted<double>(naive[m]).span(),
                             exact[m].span(), epsilon_of<float>, largest));
  }
  return worst;
}

BenchCase make_case(const LinearShape& shape, bool quick) {
  const char* const kind = kNames[static_cast<int>(shape.kind)];
  return {.name = fmt::format("linattn-{}-d{}-s{}{}", kind, shape.head_dim, shape.length, shape.backward ? "-bwd" : ""),
      .group = "linattn",
      .shape = fmt::format("H{} S{} D{} {}", shape.num_heads, shape.length, shape.head_dim, kind),
      .quick = quick,
      .prepare = [shape](Context& context) {
        const auto p = std::make_shared<LinearProblem>(shape);
        if (shape.backward) p->forward(context);
        return Prepared{.run = [p, shape, &context] { shape.backward ? p->backward(context) : p->forward(context); },
            .judge = [shape, &context] { return judge_small(shape, context); },
            .flops = shape.flops(),
            .kernel = fmt::format("chunks of {:.0f} tokens, {}", kChunk, isa_name(context.isa()))};
      }};
}

}  // namespace

std::vector<BenchCase> linear_attention_cases() {
  std::vector<BenchCase> cases;
  for (const Kind kind : {Kind::kFree, Kind::kCausal, Kind::kDecay, Kind::kDelta}) {
    for (const Index head_dim : {64, 128}) {
      for (const bool backward : {false, true}) {
        const bool quick = head_dim == 64 && kind == Kind::kCausal;
        cases.push_back(make_case({kind, 512 / head_dim, 4096, head_dim, backward}, quick));
      }
    }
  }
  for (const bool backward : {false, true}) cases.push_back(make_case({Kind::kHybrid, 8, 2048, 128, backward}, true));
  return cases;
}

}  // namespace qkv::cli
