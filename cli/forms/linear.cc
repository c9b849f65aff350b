// The rows of linear attention: square, chunked and recurrent forms of one sum, without an order, random features of
// softmax, decay, the delta rule. Each is held against its own textbook (reference/linear_attention.h), and those that
// must be equal with each other.
#include <algorithm>

#include "core/threads/context_impl.h"
#include "forms/rows.h"
#include "kernels/linear_attention/params.h"
#include "qkv/linear_attention.h"
#include "reference/linear_attention.h"

namespace qkv::cli {
namespace {

template <class N> struct LinearTextbook {
  Tensor<N> q, k, v, features, decay, beta;
  reference::LinearOptions<N> options;
  auto recurrent() const { return reference::linear_attention_recurrent<N>(q, k, v, options); }
  auto square() const { return reference::linear_attention_quadratic<N>(q, k, v, options); }
};

class LinearForms {
 public:
  LinearForms(FormsReport& report, const AloneInput& input, Context& context)
      : report_(report),
        input_(input),
        context_(context),
        q_(input.heads<float>(0)),
        k_(input.heads<float>(1)),
        unit_k_(input.heads<float>(1)),
        v_(input.heads<float>(2)) {
    const Index width = head_dim();
    for (Index row = 0; row < unit_k_.count() / width;
         ++row) {  // the delta rule wants keys of length 1, and decay alone sums better with them
      float* const x = unit_k_.data() + row * width;
      double sum = 0;
      for (Index n = 0; n < width; ++n) sum += static_cast<double>(x[n]) * static_cast<double>(x[n]);
      for (Index n = 0; n < width && sum > 0; ++n)
        x[n] = static_cast<float>(static_cast<double>(x[n]) / std::sqrt(sum));
    }
    features_ = Tensor<float>({4 * width, width});
    random_features(input.sizes.seed, View<float, 2>(features_));
    decay_ = Tensor<float>({1, input.sizes.num_heads, 1});
    for (Index h = 0; h < input.sizes.num_heads; ++h) {  // RetNet's: 1 - 2^(-5-h)
      decay_.data()[h] = static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(std::min<Index>(h, 19)))));
    }
    beta_ = Tensor<float>({1, 1, 1});
    beta_.data()[0] = 0.5F;
  }

  void run() {
    LinearAttentionOptions<float> options;
    add("linear", options, state_flops(head_dim()), true);
    options.feature_map = FeatureMap::kSoftmax;
    options.features = features_;
    const Index count = features_.size(0);
    add("linear features", options, state_flops(count) + map_flops(count), true);

    options = {.causal = true};
    const Truth<double> causal = truth_of_case(options);
    const Tensor<float> square = add_square(options, causal);
    const Tensor<float> chunked = add("linear chunked", options, state_flops(head_dim()) + pair_flops(0), false);
    options.form = LinearForm::kRecurrent;
    const Tensor<float> recurrent = add("linear recurrent", options, state_flops(head_dim()), false);
    report_.equal.push_back(compare<float, double>("linear square", square, "linear chunked", chunked, causal));
    report_.equal.push_back(compare<float, double>("linear chunked", chunked, "linear recurrent", recurrent, causal));

    options = {.feature_map = FeatureMap::kIdentity, .causal = true, .normalized = false};
    options.log_decay = decay_;
    add("linear decay", options, state_flops(head_dim()) + pair_flops(0), false);
    options.log_decay = {};
    options.beta = beta_;
    add("linear delta", options, 1.5 * state_flops(head_dim()) + pair_flops(0) + pair_flops(1), false);
  }

 private:
  Index head_dim() const { return input_.sizes.embed_dim / input_.sizes.num_heads; }
  const Tensor<float>& keys(const LinearAttentionOptions<float>& options) const {
    return options.normalized ? k_ : unit_k_;
  }

  /// 2 F Dv for a token's key and value into the state, and as many for its query out of it.
  double state_flops(Index features) const {
    return 4 * input_.tokens() * input_.embed() * static_cast<double>(features);
  }
  /// 2 (D + Dv) for each pair of a chunk in which the key is at least `before` tokens earlier.
  double pair_flops(Index before) const {
    double pairs = 0;
    for (Index begin = 0; begin < input_.sizes.length; begin += kLinearCausalChunk) {
      const double tokens = static_cast<double>(std::min(kLinearCausalChunk, input_.sizes.length - begin) - before);
      pairs += tokens * (tokens + 1) / 2;
    }
    return 4 * static_cast<double>(input_.sizes.batch) * input_.embed() * pairs;
  }
  /// 2 F D for each query and key.
  double map_flops(Index features) const {
    return 4 * input_.tokens() * input_.embed() * static_cast<double>(features);
  }

  template <class N> LinearTextbook<N> textbook_of(const LinearAttentionOptions<float>& o, bool positive) const {
    const auto copy = [&](const Tensor<float>& from, bool absolute) {
      Tensor<N> to(from.sizes());
      std::ranges::transform(
          from.span(), to.data(), [&](float x) { return static_cast<N>(absolute ? std::abs(x) : x); });
      return to;
    };
    const bool linear_map = o.feature_map == FeatureMap::kIdentity;
    LinearTextbook<N> t{copy(q_, positive && linear_map), copy(keys(o), positive && linear_map), copy(v_, positive),
        copy(features_, false), copy(decay_, false), copy(beta_, false), {}};
    t.options.map = o.feature_map, t.options.causal = o.causal, t.options.normalized = o.normalized;
    if (!o.features.is_null()) t.options.features = t.features;
    if (!o.log_decay.is_null()) t.options.log_decay = t.decay;
    if (!o.beta.is_null() && !positive) t.options.beta = t.beta;
    return t;
  }

  /// A: the form with every term positive, once more for the sums that weights are made of. With the delta rule u is at
  /// most twice as large as v, since keys have length 1 and beta is below 1.
  Truth<double> truth_of_case(const LinearAttentionOptions<float>& o) const {
    Tensor<double> a = textbook_of<double>(o, true).recurrent().out;
    for (double& x : a.span()) x *= 2;
    return {textbook_of<double>(o, false).recurrent().out, textbook_of<float>(o, false).recurrent().out, a};
  }

  Form row_of(std::string name, double flops) const {
    Form row{.name = std::move(name), .family = "linear", .type = "f32"};
    row.attention_flops = flops;
    return row;
  }

  Tensor<float> add(std::string name, const LinearAttentionOptions<float>& options, double flops, bool like_softmax) {
    Form row = row_of(std::move(name), flops);
    Tensor<float> out(v_.sizes());
    const auto forward = [&] { linear_attention_forward(q_, keys(options), v_, out, {}, options, {}, context_); };
    context_.trim();
    forward();
    row.score_bytes = static_cast<double>(context_.scratch_bytes());
    row.longest = longest_length(
        report_.memory, 0, 16 * static_cast<double>(input_.sizes.batch) * input_.embed(), row.score_bytes);
    measure_row(row, out, truth_of_case(options), like_softmax ? &input_ : nullptr, forward);
    report_.forms.push_back(std::move(row));
    return out;
  }

  /// Plain loops over pairs; they hold the values of one head, and no scores.
  Tensor<float> add_square(const LinearAttentionOptions<float>& options, const Truth<double>& truth) {
    const double length = static_cast<double>(input_.sizes.length);
    Form row = row_of("linear square", 2 * input_.tokens() * (length + 1) * input_.embed());
    row.score_bytes = sizeof(float) * length * static_cast<double>(head_dim());
    row.longest = longest_length(report_.memory, 0,
        16 * static_cast<double>(input_.sizes.batch) * input_.embed() + 4 * static_cast<double>(head_dim()), 0);
    const LinearTextbook<float> textbook = textbook_of<float>(options, false);
    Tensor<float> out = textbook.square().out;
    measure_row(row, out, truth, nullptr, [&] { textbook.square(); });
    report_.forms.push_back(std::move(row));
    return out;
  }

  FormsReport& report_;
  const AloneInput& input_;
  Context& context_;
  Tensor<float> q_, k_, unit_k_, v_, features_, decay_, beta_;
};

}  // namespace

void add_linear_forms(FormsReport& report, const AloneInput& input, Context& context) {
  LinearForms(report, input, context).run();
}

}  // namespace qkv::cli
