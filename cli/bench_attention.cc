// Cases of attention: forward and backward, full and causal, f32 and f64, and one new query against a long cache.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "bench.h"
#include "core/random.h"
#include "reference/attention.h"

namespace qkv::cli {
namespace {

struct Shape {
  Index num_heads = 1, q_len = 0, kv_len = 0, head_dim = 0;
  bool causal = false, backward = false;
};

template <class T>
struct Problem {
  Shape shape;
  Tensor<T> q, k, v, out, dout, dq, dk, dv;  // [1, H, T, D]
  Tensor<T> lse;                             // [1, H, Tq]
  AttentionOptions options;

  explicit Problem(const Shape& s)
      : shape(s),
        q({1, s.num_heads, s.q_len, s.head_dim}),
        k({1, s.num_heads, s.kv_len, s.head_dim}),
        v(k.sizes()),
        out(q.sizes()),
        lse({1, s.num_heads, s.q_len}) {
    if (s.causal) options.mask = Mask::causal();
    Random random(17);
    const auto fill = [&](Tensor<T>& tensor) {
      for (T& value : tensor.span()) value = static_cast<T>(2 * random.uniform_f32() - 1);
    };
    fill(q);
    fill(k);
    fill(v);
    if (!s.backward) return;
    dout = Tensor<T>(out.sizes());
    dq = Tensor<T>(q.sizes());
    dk = Tensor<T>(k.sizes());
    dv = Tensor<T>(v.sizes());
    fill(dout);
  }

  void forward(Context& context) { attention_forward(q, k, v, out, lse, options, context); }
  void backward(Context& context) {
    attention_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, options, context);
  }
};

template <class T>
Tensor<double> widened(View<const T, 4> x) {
  Tensor<double> wide({x.size(0), x.size(1), x.size(2), x.size(3)});
  double* to = wide.data();
  for (Index h = 0; h < x.size(1); ++h) {
    for (Index i = 0; i < x.size(2); ++i) {
      for (Index d = 0; d < x.size(3); ++d) *to++ = static_cast<double>(x(0, h, i, d));
    }
  }
  return wide;
}

/// One head of a [1, H, T, D] tensor, without a copy.
template <class T>
View<const T, 4> head_of(const Tensor<T>& x, Index head) {
  return x.template view<4>().sliced(1, head, head + 1);
}

/// The first, a middle and the last row of the last head, from the output of the measured call itself.
template <class T>
Judgement judge_forward(const Problem<T>& p) {
  const Index head = p.shape.num_heads - 1;
  const View<const T, 4> k = head_of(p.k, head), v = head_of(p.v, head);
  const Tensor<double> wide_k = widened(k), wide_v = widened(v);
  Judgement judgement;
  for (const Index row : {Index{0}, p.shape.q_len / 2, p.shape.q_len - 1}) {
    const View<const T, 4> q = head_of(p.q, head).sliced(2, row, row + 1);
    const View<const T, 4> out = head_of(p.out, head).sliced(2, row, row + 1);
    const auto keep = [&](Index, Index, Index, Index j) { return !p.shape.causal || j <= row; };
    reference::Options<T> narrow_options;
    reference::Options<double> wide_options;
    narrow_options.keep = wide_options.keep = keep;
    const Tensor<T> naive = reference::attention_forward<T>(q, k, v, narrow_options).out;
    const Tensor<double> exact = reference::attention_forward<double>(widened(q), wide_k, wide_v, wide_options).out;
    const std::span<const T> got(out.data(), static_cast<std::size_t>(p.shape.head_dim));
    judgement = worse(judgement, judge<T>(got, naive.span(), exact.span(), 1));  // |v| <= 1
  }
  return judgement;
}

/// Sums of sizes of terms, where no input exceeds 1: dq and dk of scale w (|dout||v| + |dout||out|), dv of w.
struct GradientTerms {
  double dq = 0, dk = 0, dv = 0;
};

GradientTerms gradient_terms(const reference::Forward<double>& forward, const View<const double, 4>& v,
                             const View<const double, 4>& dout) {
  const View<const double, 4> weights = forward.weights, out = forward.out;  // [1, 1, T, T], [1, 1, T, D]
  const Index length = v.size(2), head_dim = v.size(3);
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  std::vector<double> of_key(static_cast<std::size_t>(length)), weight_of_key(static_cast<std::size_t>(length));
  GradientTerms terms;
  for (Index i = 0; i < length; ++i) {
    double of_query = 0;
    for (Index j = 0; j < length; ++j) {
      double sizes = 0;
      for (Index d = 0; d < head_dim; ++d) {
        sizes += std::abs(dout(0, 0, i, d)) * (std::abs(v(0, 0, j, d)) + std::abs(out(0, 0, i, d)));
      }
      const double term = scale * weights(0, 0, i, j) * sizes;
      of_query += term;
      of_key[static_cast<std::size_t>(j)] += term;
      weight_of_key[static_cast<std::size_t>(j)] += weights(0, 0, i, j);
    }
    terms.dq = std::max(terms.dq, of_query);
  }
  terms.dk = std::ranges::max(of_key);
  terms.dv = std::ranges::max(weight_of_key);
  return terms;
}

/// All gradients of a problem of the same kind with one head and at most 160 tokens.
template <class T>
Judgement judge_backward(const Shape& shape, Context& context) {
  Shape small = shape;
  small.num_heads = 1;
  small.q_len = small.kv_len = std::min<Index>(shape.q_len, 160);
  Problem<T> p(small);
  p.forward(context);
  p.backward(context);
  reference::Options<T> narrow_options;
  reference::Options<double> wide_options;
  if (shape.causal) narrow_options.keep = wide_options.keep = [](Index, Index, Index i, Index j) { return j <= i; };
  const Tensor<double> q = widened<T>(p.q), k = widened<T>(p.k), v = widened<T>(p.v), dout = widened<T>(p.dout);
  const auto naive = reference::attention_backward<T>(p.q, p.k, p.v, p.dout, {}, narrow_options);
  const auto exact = reference::attention_backward<double>(q, k, v, dout, {}, wide_options);
  const GradientTerms terms = gradient_terms(reference::attention_forward<double>(q, k, v, wide_options), v, dout);
  const auto one = [](const Tensor<T>& got, const Tensor<T>& plain, const Tensor<double>& truth, double sizes) {
    return judge<T>(got.span(), plain.span(), truth.span(), sizes);
  };
  return worse(one(p.dq, naive.dq, exact.dq, terms.dq),
               worse(one(p.dk, naive.dk, exact.dk, terms.dk), one(p.dv, naive.dv, exact.dv, terms.dv)));
}

template <class T>
Prepared prepare(const Shape& shape, Context& context) {
  auto problem = std::make_shared<Problem<T>>(shape);
  if (!shape.backward) {
    return {[problem, &context] { problem->forward(context); }, [problem] { return judge_forward(*problem); }};
  }
  problem->forward(context);
  return {[problem, &context] { problem->backward(context); }, [shape, &context] { return judge_backward<T>(shape, context); }};
}

double flops_of(const Shape& s) {
  const double pairs = static_cast<double>(s.num_heads * s.q_len) * static_cast<double>(s.kv_len) * (s.causal ? 0.5 : 1);
  return 4 * pairs * static_cast<double>(s.head_dim) * (s.backward ? 2.5 : 1);
}

/// Of the FMA peak. Short sequences pay for their edges, a causal one for its diagonal.
double goal_of(const Shape& s, bool is_f64) {
  const std::size_t length = s.q_len >= 1024 ? 2 : s.q_len >= 512 ? 1 : 0;
  constexpr std::array<double, 3> kForward = {0.50, 0.60, 0.70}, kCausal = {0.30, 0.45, 0.60}, kForwardF64 = {0.40, 0.50, 0.60},
                                  kBackward = {0.35, 0.45, 0.55}, kBackwardCausal = {0.25, 0.40, 0.50};
  if (s.backward) return (s.causal ? kBackwardCausal : kBackward)[length];
  if (s.causal) return kCausal[length];
  return (is_f64 ? kForwardF64 : kForward)[length];
}

/// About 2 GFLOP forward, so that a run is long enough to time and short enough to repeat.
Index heads_for(Index length, Index head_dim) {
  return std::clamp<Index>(8 * 1024 * 1024 / (length * length) * 64 / head_dim, 1, 64);
}

BenchCase make_case(const Shape& shape, bool is_f64, bool quick) {
  BenchCase one;
  one.name = fmt::format("{}-{}-d{}-s{}{}", shape.backward ? "bwd" : "fwd", is_f64 ? "f64" : "f32", shape.head_dim, shape.q_len,
                         shape.causal ? "-causal" : "");
  one.quick = quick;
  one.of = is_f64 ? Of::kFmaF64 : Of::kFmaF32;
  one.work = flops_of(shape);
  one.goal = goal_of(shape, is_f64);
  one.prepare = [shape, is_f64](Context& context) {
    return is_f64 ? prepare<double>(shape, context) : prepare<float>(shape, context);
  };
  return one;
}

/// One query against a cache: bound by reading keys and values once.
BenchCase decode_case() {
  const Shape shape{.num_heads = 8, .q_len = 1, .kv_len = 32768, .head_dim = 128};
  BenchCase one;
  one.name = "decode-f32-d128-s32768";
  one.quick = true;
  one.of = Of::kBandwidth;
  one.work = 2.0 * sizeof(float) * static_cast<double>(shape.num_heads * shape.kv_len * shape.head_dim);
  one.goal = 0.5;
  one.prepare = [shape](Context& context) { return prepare<float>(shape, context); };
  return one;
}

bool is_quick(const Shape& s, bool is_f64) {
  if (is_f64) return s.q_len == 1024 && s.head_dim == 64 && !s.causal;
  if (s.head_dim == 128) return s.q_len == 2048 && !s.causal && !s.backward;
  return s.q_len == 1024 || (s.q_len == 128 && !s.causal);
}

}  // namespace

std::vector<BenchCase> attention_cases() {
  std::vector<BenchCase> cases;
  for (const bool is_f64 : {false, true}) {
    for (const bool backward : {false, true}) {
      for (const Index head_dim : {64, 128}) {
        for (const Index length : {128, 512, 1024, 2048, 4096}) {
          for (const bool causal : {false, true}) {
            const Shape shape{.num_heads = heads_for(length, head_dim),
                              .q_len = length,
                              .kv_len = length,
                              .head_dim = head_dim,
                              .causal = causal,
                              .backward = backward};
            cases.push_back(make_case(shape, is_f64, is_quick(shape, is_f64)));
          }
        }
      }
    }
  }
  cases.push_back(decode_case());
  return cases;
}

}  // namespace qkv::cli
