// Cases of linear attention: its forms at one length, forward and backward. Flops: 4 F Dv for each token and head with
// the state, and (F + Dv) for each pair of a chunk that causal keeps; 2.5 times that backward, as attention's are
// counted; the delta rule's triangular solve beside them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/bench.h"
#include "kernels/linear_attention/params.h"
#include "qkv/linear_attention.h"

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

struct LinearProblem {
  Tensor<float> q, k, v, out, dout, dq, dk, dv;          // [1, H, T, D]
  Tensor<float> normalizer, beta, decay, dbeta, ddecay;  // [1, H, T]
  LinearAttentionOptions<float> options;
  LinearAttentionGradients<float> gradients;
  View<float, 3> n;

  explicit LinearProblem(const LinearShape& s) {
    const std::vector<Index> sizes{1, s.num_heads, s.length, s.head_dim}, rows{1, s.num_heads, s.length};
    Random random(3);
    const double keys = s.delta() ? 1.5 / std::sqrt(static_cast<double>(s.head_dim)) : 1;
    q = uniform_tensor<float>(random, sizes), k = uniform_tensor<float>(random, sizes, -keys, keys),
    v = uniform_tensor<float>(random, sizes), out = Tensor<float>(sizes);
    options.causal = s.kind != Kind::kFree;
    options.normalized = s.kind == Kind::kFree || s.kind == Kind::kCausal;
    if (!options.normalized) options.feature_map = s.kind == Kind::kHybrid ? FeatureMap::kUnit : FeatureMap::kIdentity;
    if (options.normalized && s.backward) normalizer = Tensor<float>(rows), n = normalizer;
    if (s.delta()) options.beta = beta = uniform_tensor<float>(random, rows, 0, 1);
    if (s.decays()) options.log_decay = decay = uniform_tensor<float>(random, rows, -0.05, 0);
    if (!s.backward) return;
    dout = uniform_tensor<float>(random, sizes);
    gradients.dq = dq = Tensor<float>(sizes), gradients.dk = dk = Tensor<float>(sizes),
    gradients.dv = dv = Tensor<float>(sizes);
    if (s.delta()) gradients.dbeta = dbeta = Tensor<float>(rows);
    if (s.decays()) gradients.dlog_decay = ddecay = Tensor<float>(rows);
  }

  void forward(Context& context) { linear_attention_forward(q, k, v, out, n, options, {}, context); }
  void backward(Context& context) {
    linear_attention_backward(q, k, v, out, View<const float, 3>(n), dout, gradients, options, context);
  }
};

BenchCase make_case(const LinearShape& shape) {
  const char* const kind = kNames[static_cast<int>(shape.kind)];
  return {.name = fmt::format("linattn-{}-d{}-s{}{}", kind, shape.head_dim, shape.length, shape.backward ? "-bwd" : ""),
      .group = "linattn",
      .shape = fmt::format("H{} S{} D{} {}", shape.num_heads, shape.length, shape.head_dim, kind),
      .prepare = [shape](Context& context) {
        const auto p = std::make_shared<LinearProblem>(shape);
        if (shape.backward) p->forward(context);
        return Prepared{.run = [p, shape, &context] { shape.backward ? p->backward(context) : p->forward(context); },
            .flops = shape.flops(),
            .kernel = fmt::format("chunks of {:.0f} tokens, {}", kChunk, isa_name(context.isa()))};
      }};
}

}  // namespace

std::vector<BenchCase> linear_attention_cases() {
  std::vector<BenchCase> cases;
  for (const Kind kind : {Kind::kFree, Kind::kCausal, Kind::kDecay, Kind::kDelta}) {
    for (const Index head_dim : {64, 128}) {
      for (const bool backward : {false, true})
        cases.push_back(make_case({kind, 512 / head_dim, 4096, head_dim, backward}));
    }
  }
  for (const bool backward : {false, true}) cases.push_back(make_case({Kind::kHybrid, 8, 2048, 128, backward}));
  return cases;
}

}  // namespace qkv::cli
