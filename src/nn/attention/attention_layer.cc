// Options, parameters and files of AttentionLayer.
#include "qkv/nn/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "nn/attention/projected_halves.h"
#include "nn/attention/run.h"
#include "nn/parameters/parameters.h"
#include "nn/parameters/synonyms.h"

namespace qkv::inline v0::nn {

LayerConfig resolved(const AttentionForm& form, const LayerConfig& given) {
  LayerConfig c = given;
  if (!form.heads) c.num_heads = 1;
  if (!form.grouped) {
    c.num_kv_heads = c.head_dim = 0;
    c.qk_norm = QkNorm::kNone;
    c.rotary.reset();
  }
  if (!form.own_width || c.d_k == 0) c.d_k = c.embed_dim;
  check_layer_sizes(form.type, {c.embed_dim, c.d_k, c.num_heads, c.num_kv_heads, c.head_dim});
  check<OptionError>(c.num_heads > 0, form.type, "num_heads must be given, at least 1: got ", c.num_heads);
  check<ShapeError>(c.embed_dim > 0 && c.d_k > 0, form.type, "embed_dim and d_k must be at least 1: got ", c.embed_dim,
      " and ", c.d_k);
  check<OptionError>(
      c.head_dim >= 0, form.type, "head_dim must be at least 1, or 0: embed_dim / num_heads: got ", c.head_dim);
  if (c.head_dim == 0) {
    check<OptionError>(c.d_k % c.num_heads == 0, form.type, "num_heads must divide embed_dim",
        form.grouped ? " where head_dim is not given: got " : ": got ", c.num_heads, " heads for ", c.d_k);
    c.head_dim = c.d_k / c.num_heads;
  }
  if (c.num_kv_heads == 0) c.num_kv_heads = c.num_heads;
  check<OptionError>(c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0, form.type,
      "num_kv_heads must divide num_heads: got ", c.num_kv_heads, " for ", c.num_heads);
  check<OptionError>(
      c.norm_eps > 0 && std::isfinite(c.norm_eps), form.type, "norm_eps must be a number above 0: got ", c.norm_eps);
  c.bias = c.bias.value_or(form.bias);
  c.output_bias = form.grouped ? c.output_bias.value_or(*c.bias) : *c.bias;
  c.output_proj = form.output == OutputProjection::kRequired ||
                  (form.output == OutputProjection::kOptional && c.output_proj.value_or(false));
  c.causal = c.causal.value_or(form.causal);
  c.empty_row = c.empty_row.value_or(form.empty_row);
  c.dropout = c.dropout.value_or(form.dropout);
  c.residual_dropout = c.residual_dropout.value_or(form.residual_dropout);
  for (const float p : {*c.dropout, *c.residual_dropout}) dropout_threshold(static_cast<double>(p), form.type);
  return c;
}

namespace {

Tensor<float> ones(Index count) {
  Tensor<float> tensor({count});
  std::ranges::fill(tensor.span(), 1.0F);
  return tensor;
}

/// f of each of a layer's tensors.
template <class Tensors, class F> Tensors each(const Tensors& t, const F& f) {
  return {f(t.in_weight), f(t.in_bias), f(t.out_weight), f(t.out_bias), f(t.q_norm), f(t.k_norm)};
}

}  // namespace

AttentionLayer::AttentionLayer(const AttentionForm& form, const LayerConfig& config)
    : Layer(form.type), form_(form), config_(resolved(form, config)), merged_(form.merged) {
  const LayerConfig& c = config_;
  if (c.rotary) rotary_.emplace(c.head_dim, *c.rotary);
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    weight_names_[role] = full_name(form.names[role], false);
    bias_names_[role] = full_name(form.names[role], true);
  }
  const Index e = c.embed_dim, rows = projected_width();
  const bool torch_mha = c.init == Init::kTorchMha;
  values_.in_weight = Tensor<float>({rows, e});
  // Xavier's bound counts the rows of the merged matrix: torch stores q, k, v as one.
  fill_uniform(values_.in_weight.span(), torch_mha ? std::sqrt(6.0 / static_cast<double>(rows + e)) : linear_bound(e),
      c.seed, 0);
  if (*c.bias) values_.in_bias = Tensor<float>({rows});
  if (*c.output_proj) {
    values_.out_weight = Tensor<float>({e, width()});
    fill_uniform(values_.out_weight.span(), linear_bound(width()), c.seed, 2);
    if (*c.output_bias) values_.out_bias = Tensor<float>({e});
  }
  if (!torch_mha) {
    fill_uniform(values_.in_bias.span(), linear_bound(e), c.seed, 1);
    fill_uniform(values_.out_bias.span(), linear_bound(width()), c.seed, 3);
  }
  if (c.qk_norm != QkNorm::kNone) {
    const bool whole = c.qk_norm == QkNorm::kVector;
    values_.q_norm = ones(whole ? width() : c.head_dim);
    values_.k_norm = ones(whole ? kv_width() : c.head_dim);
  }
  gradients_ = each(values_, zeros_like);
}

QkNorm AttentionLayer::qk_norm() const {
  if (values_.q_norm.count() == 0) return QkNorm::kNone;
  return values_.q_norm.count() == head_dim() ? QkNorm::kHead : QkNorm::kVector;
}

#define QKV_DEFINE(T)                                                                                           \
  void AttentionLayer::forward_into(                                                                            \
      View<const T, 3> x, View<T, 3> y, const ForwardOptions& options, SavedOf<T>* saved) const {               \
    Run<T>{*this}.forward(x, y, options, saved);                                                                \
  }                                                                                                             \
  void AttentionLayer::backward_into(View<const T, 3> dy, SavedOf<T>& saved, View<T, 3> dx, Context& context) { \
    Back<T>{*this}.backward(dy, saved, dx, context);                                                            \
  }                                                                                                             \
  void AttentionLayer::step(View<const T, 3> x, View<T, 3> y, KVCache& cache, StepMemoryOf<T>& memory,          \
      const Mask& mask, Context& context, std::span<const Index> cut) const {                                   \
    Run<T>{*this}.step(x, y, cache, memory, mask, context, cut);                                                \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

void ProjectedHalves::project(
    const AttentionLayer& layer, View<const float, 3> x, View<float, 3> projected, Context& context) {
  AttentionLayer::Run<float>{layer}.project(x, projected, context);
}
View<const float, 2> ProjectedHalves::output_weight(const AttentionLayer& layer) {
  return AttentionLayer::Run<float>{layer}.output_weight();
}
void ProjectedHalves::forward(
    const AttentionLayer& layer, View<float, 3> y, const ForwardOptions& options, Saved& saved) {
  AttentionLayer::Run<float>{layer}.forward_projected(y, options, saved);
}
View<const float, 3> ProjectedHalves::backward(
    AttentionLayer& layer, View<const float, 3> dy, Saved& saved, Context& context) {
  return AttentionLayer::Back<float>{layer}.backward_projected(dy, saved, context);
}
void ProjectedHalves::backward_projection(AttentionLayer& layer, View<const float, 3> x,
    View<const float, 3> dprojected, View<float, 3> dx, Context& context) {
  AttentionLayer::Back<float>{layer}.backward_projection(x, dprojected, dx, context);
}

std::vector<Parameter> AttentionLayer::parameters() {
  std::vector<Parameter> list;
  const auto add_rows = [&](const std::string& name, Tensor<float> Tensors::*member, Index first, Index rows) {
    Tensor<float>& value = values_.*member;
    if (value.count() == 0) return;
    std::vector<Index> sizes = value.sizes();
    sizes[0] = rows;
    const auto row = static_cast<std::size_t>(value.count() / value.size(0));
    const std::size_t begin = static_cast<std::size_t>(first) * row;
    const std::size_t count = static_cast<std::size_t>(rows) * row;
    list.push_back({name, std::move(sizes), value.span().subspan(begin, count),
        (gradients_.*member).span().subspan(begin, count)});
  };
  const Index w = width(), kv = kv_width();
  const auto add_input = [&](Role role, Index first, Index rows) {
    add_rows(weight_names_[role], &Tensors::in_weight, first, rows);
    add_rows(bias_names_[role], &Tensors::in_bias, first, rows);
  };
  if (merged_) {
    add_input(kMerged, 0, w + 2 * kv);
  } else {
    add_input(kQuery, 0, w);
    add_input(kKey, w, kv);
    add_input(kValue, w + kv, kv);
  }
  add_rows(weight_names_[kOutput], &Tensors::out_weight, 0, config_.embed_dim);
  add_rows(bias_names_[kOutput], &Tensors::out_bias, 0, config_.embed_dim);
  add_rows(std::string(kQueryNorm), &Tensors::q_norm, 0, values_.q_norm.count());
  add_rows(std::string(kKeyNorm), &Tensors::k_norm, 0, values_.k_norm.count());
  return list;
}

void AttentionLayer::copy_parameters(const AttentionLayer& from) {
  const auto sizes = [](const LayerConfig& c) {
    return std::array{c.embed_dim, c.num_heads, c.num_kv_heads, c.head_dim};
  };
  const auto own = sizes(config_), theirs = sizes(from.config_);
  check<ShapeError>(
      own == theirs, form_.type, "layers must have the same embed_dim, num_heads, num_kv_heads and head_dim: got ",
      [&] { return shape_text(own.data(), 4); }, " from ", [&] { return shape_text(theirs.data(), 4); });
  check<OptionError>(from.has_output_projection() ? form_.output != OutputProjection::kNone
                                                  : form_.output != OutputProjection::kRequired,
      form_.type, "an output projection must be in both forms or in neither: got ",
      from.has_output_projection() ? "one" : "none", " from ", from.form_.type);
  Tensors values = each(from.values_, clone_of), gradients = each(values, zeros_like);
  values_ = std::move(values);
  gradients_ = std::move(gradients);
}

void AttentionLayer::load_state_dict(const StateDict& state, std::string_view prefix) {
  NamedTensors read = read_attention_parameters(form_, config_, state, prefix);
  const auto one = [](const AnyTensor* tensor) { return tensor == nullptr ? Tensor<float>() : to_f32(*tensor); };
  const auto stacked = [&](const std::array<const AnyTensor*, kNumRoles>& tensors, std::vector<Index> shape) {
    if (read.merged || tensors[kQuery] == nullptr) return one(tensors[kMerged]);
    Tensor<float> all(std::move(shape));
    auto next = all.span().begin();
    for (const Role role : {kQuery, kKey, kValue}) {
      const Tensor<float> part = to_f32(*tensors[role]);
      next = std::copy(part.span().begin(), part.span().end(), next);
    }
    return all;
  };
  // Into new tensors first: after a failure (memory) the layer is unchanged.
  Tensors loaded{stacked(read.weights, {projected_width(), config_.embed_dim}),
      stacked(read.biases, {projected_width()}), one(read.weights[kOutput]), one(read.biases[kOutput]),
      one(read.q_norm), one(read.k_norm)};
  gradients_ = each(loaded, zeros_like);
  values_ = std::move(loaded);
  merged_ = read.merged;
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    if (!read.weight_names[role].empty()) weight_names_[role] = std::move(read.weight_names[role]);
    if (!read.bias_names[role].empty()) bias_names_[role] = std::move(read.bias_names[role]);
  }
}

}  // namespace qkv::inline v0::nn
