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
constexpr Index kWindow = 128;

template <class T> double as_double(T x) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(x));
  } else {
    return static_cast<double>(x);
  }
}

std::vector<Index> lengths_of(const AttentionShape& s) {
  std::vector<Index> lengths;
  for (Index b = 0; b < s.batch; ++b) lengths.push_back(s.kv_len * (b + 1) / s.batch);
  return lengths;
}

AttentionOptions options_of(const AttentionShape& s) {
  AttentionOptions options;
  if (s.causal) options.mask = Mask::causal(s.q_len == s.kv_len ? Align::kSquare : Align::kBottomRight);
  if (s.extra == Extra::kWindow) options.mask = Mask::sliding(kWindow);
  if (s.extra == Extra::kKeyLengths) options.mask = Mask::key_lengths(lengths_of(s));
  if (s.extra == Extra::kDropout) options.dropout = {.p = kDropout, .seed = 17, .training = true};
  return options;
}

/// What the options say, for the textbook.
reference::Keep keep_of(const AttentionShape& s) {
  return [s, lengths = lengths_of(s)](Index b, Index, Index i, Index j) {
    if (s.causal && j > i + s.kv_len - s.q_len) return false;
    if (s.extra == Extra::kWindow && (j > i || j <= i - kWindow)) return false;
    return s.extra != Extra::kKeyLengths || j < lengths[static_cast<std::size_t>(b)];
  };
}

/// <a, b>
template <class T> double inner(const Tensor<T>& a, const Tensor<T>& b) {
  double sum = 0;
  for (Index n = 0; n < a.count(); ++n) sum += as_double(a.data()[n]) * as_double(b.data()[n]);
  return sum;
}

/// Heads [h, h + 1) of sequence b of [B, H, T, D], without a copy.
template <class T> View<const T, 4> head_of(const Tensor<T>& x, Index b, Index h) {
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

template <class T> AttentionProblem<T>::AttentionProblem(const AttentionShape& s, bool gradients, std::size_t copies)
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

template <class T> void AttentionProblem<T>::forward(Context& context) {
  attention_forward(q, k(), v(), {.out = out, .lse = lse}, options, context);
}

template <class T> void AttentionProblem<T>::backward(Context& context) {
  AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
  if (dbias.count() > 0) gradients.dbias = dbias;
  attention_backward(q, k(), v(), out, lse, dout, gradients, options, context);
}

template <class T> AttentionPlan AttentionProblem<T>::plan(Context& context) const {
  return attention_plan(q, k(), v(), options, context);
}

std::string kernel_text(const AttentionPlan& plan) {
  std::string text =
      fmt::format("{}, {}, {} queries x {} keys", plan.algorithm, isa_name(plan.isa), plan.query_tile, plan.key_tile);
  for (const std::string& reason : plan.skipped) text += "; not " + reason;
  return text;
}

namespace {

/// One row of one head against the textbook: out, and where there are gradients dq and dbias.
template <class T> struct RowJudge {
  using Sum = Accumulator<T>;
  const AttentionProblem<T>& p;
  Index b, h, row;
  Tensor<float> factors{};  // [B, H, Tq, Tk] of dropout
  reference::Keep keep = keep_of(p.shape);

  template <class N> reference::Options<N> options(const Tensor<N>& bias) const {
    reference::Options<N> made;
    made.keep = [this](Index, Index, Index, Index j) { return keep(b, h, row, j); };
    if (bias.count() > 0) made.bias = bias;
    if (factors.count() > 0) {
      made.factor = [this](Index, Index, Index, Index j) {
        return static_cast<double>(std::as_const(factors).template view<4>()(b, h, row, j));
      };
    }
    return made;
  }
  template <class E> View<const E, 4> rows(const Tensor<E>& x, Index head) const {
    return head_of(x, b, head).sliced(2, row, row + 1);
  }
  template <class N> auto textbook() const {
    const Index own = h / (p.shape.num_heads / p.shape.kv_heads());
    const Tensor<N> q = converted<N>(rows(p.q, h)), k = converted<N>(head_of(p.k(), b, own)),
                    v = converted<N>(head_of(p.v(), b, own));
    const Tensor<N> bias =
        p.bias.count() > 0 ? converted<N>(head_of(p.bias, 0, h).sliced(2, row, row + 1)) : Tensor<N>();
    const reference::Options<N> book = options(bias);
    auto forward = reference::attention_forward<N>(q, k, v, book);
    reference::Backward<N> backward;
    if (p.dout.count() > 0)
      backward = reference::attention_backward<N>(q, k, v, converted<N>(rows(p.dout, h)), {}, book);
    return std::pair(std::move(forward.out), std::move(backward));
  }
  template <class E> Judgement compare(
      const View<const E, 4>& got, const Tensor<Sum>& naive, const Tensor<double>& exact, double terms) const {
    const Tensor<E> rounded = converted<E>(naive.template view<4>());
    return cli::judge(converted<double>(got).span(), converted<double>(rounded.template view<4>()).span(), exact.span(),
        epsilon_of<E>, terms);
  }
  Judgement judge() const {
    const auto [out, naive] = textbook<Sum>();
    const auto [exact_out, exact] = textbook<double>();
    const double factor = factors.count() > 0 ? 1 / (1 - kDropout) : 1;
    const Judgement of_out = compare<T>(rows(p.out, h), out, exact_out, factor);  // |v| <= 1
    if (p.dout.count() == 0) return of_out;
    double sizes = 0;  // |dout|, with which no |dout . v| or |dout . out| is larger
    for (const double x : converted<double>(rows(p.dout, h)).span()) sizes += 2 * std::abs(x) * factor * factor;
    const double scale = 1 / std::sqrt(static_cast<double>(p.shape.head_dim));
    const Judgement both = worse(of_out, compare<T>(rows(p.dq, h), naive.dq, exact.dq, scale * sizes));
    if (p.dbias.count() == 0) return both;
    return worse(both, compare<Sum>(head_of(p.dbias, 0, h).sliced(2, row, row + 1), naive.dbias, exact.dbias, sizes));
  }
};

}  // namespace

template <class T> Judgement AttentionProblem<T>::judge() const {
  RowJudge<T> rows{*this, shape.batch - 1, shape.num_heads - 1, 0};
  if (options.dropout.training) {
    rows.factors = Tensor<float>({shape.batch, shape.num_heads, shape.q_len, shape.kv_len});
    dropout_factors(options.dropout, rows.factors);
  }
  Judgement worst;
  for (const Index row : {Index{0}, shape.q_len / 2, shape.q_len - 1}) {
    rows.row = row;
    worst = worse(worst, rows.judge());
  }
  if (dout.count() == 0) return worst;
  double sizes = 0;
  for (const T x : dout.span()) sizes += 2 * std::abs(as_double(x));
  worst = worse(worst, judge_sum(inner(dv, v()), inner(dout, out), sizes, epsilon_of<T>));
  const double scores = std::sqrt(static_cast<double>(shape.head_dim));  // no |scale q . k| is larger
  return worse(worst, judge_sum(inner(dk, k()), inner(dq, q), scores * sizes, epsilon_of<T>));
}

template struct AttentionProblem<float>;
template struct AttentionProblem<double>;
template struct AttentionProblem<BFloat16>;
template struct AttentionProblem<Float16>;

}  // namespace qkv::cli
