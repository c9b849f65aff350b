// Cases of linear attention: its forms at one length, forward and backward, and the curve of one long sequence: time must grow
// as the length. Flops: 4 F Dv for each token and head with the state, and (F + Dv) for each pair of a chunk that causal
// keeps; 2.5 times that backward, as attention's are counted; the delta rule's triangular solve beside them.
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

template <class T>
struct LinearProblem {
  Tensor<T> q, k, v, out, dout, dq, dk, dv;          // [1, H, T, D]
  Tensor<T> normalizer, beta, decay, dbeta, ddecay;  // [1, H, T]
  LinearAttentionOptions<T> options;
  LinearAttentionGradients<T> gradients;
  View<T, 3> n;

  explicit LinearProblem(const LinearShape& s)
      : q({1, s.num_heads, s.length, s.head_dim}), k(q.sizes()), v(q.sizes()), out(q.sizes()) {
    const std::vector<Index> rows{1, s.num_heads, s.length};
    Random random(3);
    const auto fill = [&](Tensor<T>& x, double size) {
      for (T& value : x.span()) value = static_cast<T>(size * (2 * random.uniform() - 1));
    };
    fill(q, 1), fill(k, s.delta() ? 1.5 / std::sqrt(static_cast<double>(s.head_dim)) : 1), fill(v, 1);
    options.causal = s.kind != Kind::kFree;
    options.normalized = s.kind == Kind::kFree || s.kind == Kind::kCausal;
    if (!options.normalized) options.feature_map = s.kind == Kind::kHybrid ? FeatureMap::kUnit : FeatureMap::kIdentity;
    if (options.normalized && s.backward) normalizer = Tensor<T>(rows), n = normalizer;
    const auto tokens = [&](double from, double to) {
      Tensor<T> x(rows);
      for (T& value : x.span()) value = static_cast<T>(from + (to - from) * random.uniform());
      return x;
    };
    if (s.delta()) options.beta = beta = tokens(0, 1);
    if (s.decays()) options.log_decay = decay = tokens(-0.05, 0);
    if (!s.backward) return;
    dout = Tensor<T>(q.sizes()), dq = Tensor<T>(q.sizes()), dk = Tensor<T>(q.sizes()), dv = Tensor<T>(q.sizes());
    fill(dout, 1);
    gradients.dq = dq, gradients.dk = dk, gradients.dv = dv;
    if (s.delta()) gradients.dbeta = dbeta = Tensor<T>(rows);
    if (s.decays()) gradients.dlog_decay = ddecay = Tensor<T>(rows);
  }

  void forward(Context& context) { linear_attention_forward(q, k, v, out, n, options, {}, context); }
  void backward(Context& context) {
    linear_attention_backward(q, k, v, out, View<const T, 3>(n), dout, gradients, options, context);
  }

  template <class N>
  struct Textbook {
    Tensor<N> q, k, v, dout, beta, decay;
    reference::LinearOptions<N> options;

    explicit Textbook(const LinearProblem& p)
        : q(converted<N>(p.q.template view<4>())),
          k(converted<N>(p.k.template view<4>())),
          v(converted<N>(p.v.template view<4>())) {
      if (p.dout.count() > 0) dout = converted<N>(p.dout.template view<4>());
      options.map = p.options.feature_map, options.causal = p.options.causal, options.normalized = p.options.normalized;
      const auto tokens = [](const Tensor<T>& from, Tensor<N>& to) {
        to = Tensor<N>(from.sizes());
        std::ranges::transform(from.span(), to.data(), [](T x) { return static_cast<N>(x); });
        return to.template view<3>();
      };
      if (p.beta.count() > 0) options.beta = tokens(p.beta, beta);
      if (p.decay.count() > 0) options.log_decay = tokens(p.decay, decay);
    }
    auto forward() const { return reference::linear_attention_recurrent<N>(q, k, v, options); }
    auto backward() const { return reference::linear_attention_backward<N>(q, k, v, dout, {}, {}, options); }
  };
};

Judgement judge_against(const Tensor<float>& got, const Tensor<float>& naive, const Tensor<double>& exact) {
  double largest = 0;
  for (const double x : exact.span()) largest = std::max(largest, std::abs(x));
  return judge(converted<double>(got.view<4>()).span(), converted<double>(naive.view<4>()).span(), exact.span(),
               epsilon_of<float>, largest);
}

/// The same kind with one head and few tokens.
Judgement judge_small(LinearShape shape, Context& context) {
  shape.num_heads = 1, shape.length = std::min(shape.length, kSmallLength);
  using Problem = LinearProblem<float>;
  Problem problem(shape);
  const Problem::Textbook<double> exact(problem);
  const Problem::Textbook<float> naive(problem);
  problem.forward(context);
  Judgement judgement = judge_against(problem.out, naive.forward().out, exact.forward().out);
  if (!shape.backward) return judgement;
  problem.backward(context);
  const auto truth = exact.backward();
  const auto plain = naive.backward();
  judgement = worse(judgement, judge_against(problem.dq, plain.dq, truth.dq));
  judgement = worse(judgement, judge_against(problem.dk, plain.dk, truth.dk));
  return worse(judgement, judge_against(problem.dv, plain.dv, truth.dv));
}

BenchCase make_case(const LinearShape& shape, bool quick) {
  BenchCase one;
  one.name = fmt::format("linattn-{}-d{}-s{}{}", kNames[static_cast<int>(shape.kind)], shape.head_dim, shape.length,
                         shape.backward ? "-bwd" : "");
  one.group = "linattn";
  one.shape =
      fmt::format("H{} S{} D{} {}", shape.num_heads, shape.length, shape.head_dim, kNames[static_cast<int>(shape.kind)]);
  one.quick = quick;
  one.prepare = [shape](Context& context) {
    auto problem = std::make_shared<LinearProblem<float>>(shape);
    Prepared prepared;
    prepared.flops = shape.flops();
    prepared.kernel = fmt::format("chunks of {:.0f} tokens, {}", kChunk, isa_name(context.isa()));
    prepared.judge = [shape, &context] { return judge_small(shape, context); };
    if (shape.backward) {
      problem->forward(context);
      prepared.run = [problem, &context] { problem->backward(context); };
    } else {
      prepared.run = [problem, &context] { problem->forward(context); };
    }
    return prepared;
  };
  return one;
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
  for (Index length = 2048; length <= 131072; length *= 4) {
    BenchCase one = make_case({.kind = Kind::kCausal, .length = length}, false);
    one.name = fmt::format("curve-linattn-s{}", length);
    one.curve = "linattn";
    one.length = static_cast<double>(length);
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace qkv::cli
