#include "bench/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "reference/attention.h"
#include "support/converted.h"

namespace qkv::cli {
namespace {

constexpr double kDropout = 0.1;

std::vector<Index> lengths_of(const AttentionShape& s) {
  std::vector<Index> lengths;
  for (Index b = 0; b < s.batch; ++b) lengths.push_back(s.kv_len * (b + 1) / s.batch);
  return lengths;
}

AttentionOptions options_of(const AttentionShape& s) {
  AttentionOptions options;
  if (s.causal) options.mask = Mask::causal(s.q_len == s.kv_len ? Align::kSquare : Align::kBottomRight);
  if (s.extra == Extra::kWindow) options.mask = Mask::sliding(s.window);
  if (s.extra == Extra::kKeyLengths) options.mask = Mask::key_lengths(lengths_of(s));
  if (s.extra == Extra::kDropout) options.dropout = {.p = kDropout, .seed = 17, .training = true};
  return options;
}

/// What the options say, for the textbook.
reference::Keep keep_of(const AttentionShape& s) {
  return [s, lengths = lengths_of(s)](Index b, Index, Index i, Index j) {
    if (s.causal && j > i + s.kv_len - s.q_len) return false;
    if (s.extra == Extra::kWindow && (j > i || j <= i - s.window)) return false;
    return s.extra != Extra::kKeyLengths || j < lengths[static_cast<std::size_t>(b)];
  };
}

/// A textbook of type T for the problem: the naive form is of the type of its sums, the exact one f64.
template <class T>
struct Textbook {
  reference::Options<T> options;
  Tensor<T> bias;
  Tensor<float> factors;

  template <class P>
  explicit Textbook(const P& problem) {
    options.keep = keep_of(problem.shape);
    if (problem.bias.count() > 0) {
      bias = converted<T>(problem.bias.template view<4>());
      options.bias = bias;
    }
    if (problem.shape.extra != Extra::kDropout) return;
    const AttentionShape& s = problem.shape;
    factors = Tensor<float>({s.batch, s.num_heads, s.q_len, s.kv_len});
    dropout_factors(problem.options.dropout, factors);
    options.factor = [this](Index b, Index h, Index i, Index j) {
      return static_cast<double>(std::as_const(factors).template view<4>()(b, h, i, j));
    };
  }
  Textbook(const Textbook&) = delete;
  Textbook& operator=(const Textbook&) = delete;
};

/// `naive` rounded as a result of type T is.
template <class T, class Sum>
Judgement judge_tensors(const View<const T, 4>& got, const Tensor<Sum>& naive, const Tensor<double>& exact, double terms) {
  const Tensor<T> rounded = converted<T>(naive.template view<4>());
  return judge(converted<double>(got).span(), converted<double>(rounded.template view<4>()).span(), exact.span(), epsilon_of<T>,
               terms);
}

/// Sums of sizes of terms, where no input exceeds 1: dq and dk of scale w (|dout||v| + |dout||out|), dv of w.
struct GradientTerms {
  double dq = 0, dk = 0, dv = 0;
};

GradientTerms gradient_terms(const reference::Forward<double>& forward, const View<const double, 4>& v,
                             const View<const double, 4>& dout) {
  const View<const double, 4> weights = forward.weights, out = forward.out;  // [B, 1, T, T], [B, 1, T, D]
  const Index length = v.size(2), head_dim = v.size(3);
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  GradientTerms terms;
  for (Index b = 0; b < v.size(0); ++b) {
    std::vector<double> of_key(static_cast<std::size_t>(length)), weight_of_key(static_cast<std::size_t>(length));
    for (Index i = 0; i < length; ++i) {
      double of_query = 0;
      for (Index j = 0; j < length; ++j) {
        double sizes = 0;
        for (Index d = 0; d < head_dim; ++d) {
          sizes += std::abs(dout(b, 0, i, d)) * (std::abs(v(b, 0, j, d)) + std::abs(out(b, 0, i, d)));
        }
        const double term = scale * weights(b, 0, i, j) * sizes;
        of_query += term;
        of_key[static_cast<std::size_t>(j)] += term;
        weight_of_key[static_cast<std::size_t>(j)] += weights(b, 0, i, j);
      }
      terms.dq = std::max(terms.dq, of_query);
    }
    terms.dk = std::max(terms.dk, std::ranges::max(of_key));
    terms.dv = std::max(terms.dv, std::ranges::max(weight_of_key));
  }
  return terms;
}

/// Heads [h, h + 1) of sequence b of [B, H, T, D], without a copy.
template <class T>
View<const T, 4> head_of(const Tensor<T>& x, Index b, Index h) {
  return x.template view<4>().sliced(0, b, b + 1).sliced(1, h, h + 1);
}

}  // namespace

std::string AttentionShape::text() const {
  std::string text = fmt::format("B{} H{}", batch, num_heads);
  if (kv_heads() != num_heads) text += fmt::format("/{}", kv_heads());
  text += q_len == kv_len ? fmt::format(" S{}", q_len) : fmt::format(" Tq{} Tk{}", q_len, kv_len);
  return text + fmt::format(" D{}{}", head_dim, causal ? " causal" : "");
}

double AttentionShape::forward_flops() const {
  const double pairs = static_cast<double>(batch * num_heads * q_len) * static_cast<double>(kv_len);
  return 4 * pairs * static_cast<double>(head_dim) * (causal && q_len == kv_len ? 0.5 : 1);
}

template <class T>
AttentionProblem<T>::AttentionProblem(const AttentionShape& s, bool gradients, std::size_t copies)
    : shape(s), q({s.batch, s.num_heads, s.q_len, s.head_dim}), out(q.sizes()), lse({s.batch, s.num_heads, s.q_len}) {
  Random random(17);
  const auto fill = [&](auto& tensor) {
    for (auto& value : tensor.span()) value = static_cast<std::decay_t<decltype(value)>>(2 * random.uniform_f32() - 1);
  };
  keys.emplace_back(std::vector<Index>{s.batch, s.kv_heads(), s.kv_len, s.head_dim});
  values.emplace_back(keys[0].sizes());
  fill(q);
  fill(keys[0]);
  fill(values[0]);
  while (keys.size() < copies) {
    keys.push_back(keys[0].clone());
    values.push_back(values[0].clone());
  }
  options = options_of(s);
  if (s.extra == Extra::kBias) {
    bias = Tensor<Sum>({1, s.num_heads, s.q_len, s.kv_len});
    fill(bias);
    options.bias = bias;
  }
  if (!gradients) return;
  dout = Tensor<T>(out.sizes());
  fill(dout);
  dq = Tensor<T>(q.sizes());
  dk = Tensor<T>(keys[0].sizes());
  dv = Tensor<T>(values[0].sizes());
  if (s.extra == Extra::kBias) dbias = Tensor<Sum>(bias.sizes());
}

template <class T>
void AttentionProblem<T>::forward(Context& context) {
  attention_forward(q, k(), v(), {.out = out, .lse = lse}, options, context);
}

template <class T>
void AttentionProblem<T>::backward(Context& context) {
  AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
  if (dbias.count() > 0) gradients.dbias = dbias;
  attention_backward(q, k(), v(), out, lse, dout, gradients, options, context);
}

template <class T>
AttentionPlan AttentionProblem<T>::plan(Context& context) const {
  return attention_plan(q, k(), v(), options, context);
}

std::string kernel_text(const AttentionPlan& plan) {
  std::string text =
      fmt::format("{}, {}, {} queries x {} keys", plan.algorithm, isa_name(plan.isa), plan.query_tile, plan.key_tile);
  for (const std::string& reason : plan.skipped) text += "; not " + reason;
  return text;
}

template <class T>
Judgement judge_rows(const AttentionProblem<T>& p) {
  using Sum = typename AttentionProblem<T>::Sum;
  const AttentionShape& s = p.shape;
  const Index b = s.batch - 1, h = s.num_heads - 1, group = s.num_heads / s.kv_heads();
  const View<const T, 4> k = head_of(p.k(), b, h / group), v = head_of(p.v(), b, h / group);
  const Tensor<Sum> narrow_k = converted<Sum>(k), narrow_v = converted<Sum>(v);
  const Tensor<double> wide_k = converted<double>(k), wide_v = converted<double>(v);
  const reference::Keep keep = keep_of(s);
  Judgement judgement;
  for (const Index row : {Index{0}, s.q_len / 2, s.q_len - 1}) {
    const View<const T, 4> q = head_of(p.q, b, h).sliced(2, row, row + 1), out = head_of(p.out, b, h).sliced(2, row, row + 1);
    reference::Options<Sum> narrow_options;
    reference::Options<double> wide_options;
    narrow_options.keep = wide_options.keep = [&](Index, Index, Index, Index j) { return keep(b, h, row, j); };
    const Tensor<Sum> narrow_q = converted<Sum>(q);
    const Tensor<double> wide_q = converted<double>(q);
    const auto naive = reference::attention_forward<Sum>(narrow_q, narrow_k, narrow_v, narrow_options);
    const auto exact = reference::attention_forward<double>(wide_q, wide_k, wide_v, wide_options);
    judgement = worse(judgement, judge_tensors<T, Sum>(out, naive.out, exact.out, 1));  // |v| <= 1
  }
  return judgement;
}

template <class T>
Judgement judge_small(const AttentionShape& shape, bool gradients, Context& context) {
  using Sum = typename AttentionProblem<T>::Sum;
  AttentionShape small = shape;
  small.batch = std::min<Index>(shape.batch, 2);
  small.num_heads = 1;
  small.num_kv_heads = 0;
  small.q_len = small.kv_len = std::min<Index>(shape.q_len, kSmallLength);
  AttentionProblem<T> p(small, true);
  p.forward(context);
  const Textbook<Sum> naive_book(p);
  const Textbook<double> exact_book(p);
  const Tensor<Sum> narrow_q = converted<Sum>(std::as_const(p.q).template view<4>()),
                    narrow_k = converted<Sum>(p.k().template view<4>()), narrow_v = converted<Sum>(p.v().template view<4>()),
                    narrow_dout = converted<Sum>(std::as_const(p.dout).template view<4>());
  const Tensor<double> q = converted<double>(narrow_q.template view<4>()), k = converted<double>(narrow_k.template view<4>()),
                       v = converted<double>(narrow_v.template view<4>()),
                       dout = converted<double>(narrow_dout.template view<4>());
  const double largest_factor = small.extra == Extra::kDropout ? 1 / (1 - kDropout) : 1;
  const auto naive_forward = reference::attention_forward<Sum>(narrow_q, narrow_k, narrow_v, naive_book.options);
  const auto forward = reference::attention_forward<double>(q, k, v, exact_book.options);
  const Judgement of_out = judge_tensors<T, Sum>(p.out, naive_forward.out, forward.out, largest_factor);
  if (!gradients) return of_out;

  p.backward(context);
  const auto naive = reference::attention_backward<Sum>(narrow_q, narrow_k, narrow_v, narrow_dout, {}, naive_book.options);
  const auto exact = reference::attention_backward<double>(q, k, v, dout, {}, exact_book.options);
  GradientTerms terms = gradient_terms(forward, v, dout);
  const double dbias_terms = terms.dq * std::sqrt(static_cast<double>(small.head_dim));
  Judgement judgement = of_out;
  const auto add = [&](const auto& got, const Tensor<Sum>& plain, const Tensor<double>& truth, double sizes) {
    using Element = std::decay_t<decltype(*got.data())>;
    judgement = worse(judgement, judge_tensors<Element, Sum>(got, plain, truth, sizes * largest_factor * largest_factor));
  };
  add(p.dq, naive.dq, exact.dq, terms.dq);
  add(p.dk, naive.dk, exact.dk, terms.dk);
  add(p.dv, naive.dv, exact.dv, terms.dv);
  if (p.dbias.count() == 0) return judgement;
  const auto sizes = p.bias.template view<4>().sizes();
  add(p.dbias, reference::reduce_to_bias<Sum>(naive.dbias, sizes), reference::reduce_to_bias<double>(exact.dbias, sizes),
      static_cast<double>(small.batch) * dbias_terms);
  return judgement;
}

template struct AttentionProblem<float>;
template struct AttentionProblem<double>;
template struct AttentionProblem<BFloat16>;
template struct AttentionProblem<Float16>;
template Judgement judge_rows<float>(const AttentionProblem<float>&);
template Judgement judge_rows<double>(const AttentionProblem<double>&);
template Judgement judge_rows<BFloat16>(const AttentionProblem<BFloat16>&);
template Judgement judge_rows<Float16>(const AttentionProblem<Float16>&);
template Judgement judge_small<float>(const AttentionShape&, bool, Context&);
template Judgement judge_small<double>(const AttentionShape&, bool, Context&);
template Judgement judge_small<BFloat16>(const AttentionShape&, bool, Context&);
template Judgement judge_small<Float16>(const AttentionShape&, bool, Context&);

}  // namespace qkv::cli
