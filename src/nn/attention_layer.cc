#include "qkv/nn/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/philox.h"
#include "nn/check_rows.h"
#include "nn/linear_products.h"
#include "nn/parameters.h"
#include "nn/synonyms.h"
#include "nn/tensor_use.h"
#include "qkv/nn/dropout.h"

namespace qkv {
inline namespace v0 {
namespace nn {
namespace {

Context& context_or_default(Context* context) { return context != nullptr ? *context : Context::default_context(); }

/// q, k or v (part 0, 1, 2) within projected [B, T, 3W], as [B, H, T, W/H].
template <class T>
View<T, 4> heads_of(Tensor<float>& projected, int part, Index num_heads) {
  const View<float, 3> all = projected.view<3>();
  const Index width = all.size(2) / 3;
  const View<float, 4> heads = split_heads(all.sliced(2, part * width, (part + 1) * width), num_heads);
  return heads;
}

}  // namespace

AttentionLayer::AttentionLayer(const AttentionLayerConfig& config) : config_(config), merged_(config.merged) {
  if (config_.width == 0) config_.width = config_.embed_dim;
  check<ShapeError>(config_.embed_dim > 0 && config_.width > 0, config_.type, "embed_dim and d_k must be at least 1: got ",
                    config_.embed_dim, " and ", config_.width);
  check<OptionError>(config_.num_heads > 0 && config_.width % config_.num_heads == 0, config_.type,
                     "num_heads must divide embed_dim: got ", config_.num_heads, " heads for ", config_.width);
  for (const float p : {config_.dropout, config_.residual_dropout}) dropout_threshold(static_cast<double>(p), config_.type);
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    weight_names_[role] = full_name(config_.names[role], false);
    bias_names_[role] = full_name(config_.names[role], true);
  }
  initialise();
}

void AttentionLayer::initialise() {
  const Index e = config_.embed_dim;
  const Index w = config_.width;
  const bool torch_mha = config_.init == Init::kTorchMha;
  in_weight_ = Tensor<float>({3 * w, e});
  // Xavier's bound counts the merged matrix: torch holds q, k, v as one.
  fill_uniform(in_weight_, torch_mha ? std::sqrt(6.0 / static_cast<double>(3 * w + e)) : linear_bound(e), config_.seed, 0);
  if (config_.bias) in_bias_ = Tensor<float>({3 * w});
  if (config_.output_now || config_.output == OutputProjection::kRequired) {
    out_weight_ = Tensor<float>({e, w});
    fill_uniform(out_weight_, linear_bound(w), config_.seed, 2);
    if (config_.bias) out_bias_ = Tensor<float>({e});
  }
  if (!torch_mha) {
    fill_uniform(in_bias_, linear_bound(e), config_.seed, 1);
    fill_uniform(out_bias_, linear_bound(w), config_.seed, 3);
  }
  make_gradients();
}

void AttentionLayer::make_gradients() {
  in_weight_gradient_ = zeros_like(in_weight_);
  in_bias_gradient_ = zeros_like(in_bias_);
  out_weight_gradient_ = zeros_like(out_weight_);
  out_bias_gradient_ = zeros_like(out_bias_);
}

void AttentionLayer::project(View<const float, 3> x, View<float, 3> projected, Context* context) const {
  check<ShapeError>(x.size(2) == config_.embed_dim && projected.size(0) == x.size(0) && projected.size(1) == x.size(1) &&
                        projected.size(2) == 3 * config_.width,
                    config_.type, "x must be [B, T, ", config_.embed_dim, "] and projected [B, T, ", 3 * config_.width,
                    "]: got ", x, " and ", projected);
  check_rows(config_.type, "x", x);
  check_rows(config_.type, "projected", projected);
  linear_forward(x, {in_weight_, has_bias() ? in_bias_.data() : nullptr}, projected, context_or_default(context));
}

void AttentionLayer::project_output(View<const float, 3> attended, View<float, 3> y, Context* context) const {
  check<ShapeError>(attended.size(2) == config_.width && y.size(0) == attended.size(0) && y.size(1) == attended.size(1) &&
                        y.size(2) == output_dim(),
                    config_.type, "attended must be [B, T, ", config_.width, "] and y [B, T, ", output_dim(), "]: got ",
                    attended, " and ", y);
  check_rows(config_.type, "attended", attended);
  check_rows(config_.type, "y", y);
  if (!has_output_projection()) return copy(attended, y);
  linear_forward(attended, {out_weight_, has_bias() ? out_bias_.data() : nullptr}, y, context_or_default(context));
}

AttentionOptions AttentionLayer::attention_options(const ForwardOptions& options) const {
  AttentionOptions inner;
  inner.mask = options.causal.value_or(config_.causal) ? Mask::causal() & options.mask : options.mask;
  inner.empty_row = options.empty_row.value_or(config_.empty_row);
  inner.dropout = {static_cast<double>(config_.dropout), options.seed, training(), options.first_sequence};
  return inner;
}

void AttentionLayer::forward_into(View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const {
  const Index batch = x.size(0);
  const Index length = x.size(1);
  check<ShapeError>(x.size(2) == config_.embed_dim, config_.type, "x must be [B, T, ", config_.embed_dim, "]: got ", x);
  check<ShapeError>(y.sizes() == View<float, 3>::Sizes{batch, length, output_dim()}, config_.type, "y must be [", batch, ", ",
                    length, ", ", output_dim(), "]: got ", y);
  check_rows(config_.type, "y", y);
  Context& context = context_or_default(options.context);
  Saved local;
  Saved& kept = saved != nullptr ? *saved : local;
  if (saved != nullptr || !has_plain_rows(x)) {
    resize(kept.x, {batch, length, config_.embed_dim});
    copy(x, kept.x);
    x = kept.x;
  }
  resize(kept.projected, {batch, length, 3 * config_.width});  // [B, T, 3W]
  resize(kept.attended, {batch, length, config_.width});       // [B, T, W]
  resize(kept.lse, {batch, config_.num_heads, length});        // [B, H, T]
  kept.options = attention_options(options);
  kept.residual = {static_cast<double>(config_.residual_dropout), options.seed, training(), options.first_sequence};

  project(x, kept.projected, &context);
  const auto q = heads_of<const float>(kept.projected, 0, config_.num_heads);  // [B, H, T, W/H]
  const auto k = heads_of<const float>(kept.projected, 1, config_.num_heads);
  const auto v = heads_of<const float>(kept.projected, 2, config_.num_heads);
  attention_forward(q, k, v, split_heads(kept.attended.view<3>(), config_.num_heads), kept.lse, kept.options, context);
  for (const auto& [wanted, kind] :
       {std::pair{options.weights, WeightsKind::kSoftmax}, {options.applied, WeightsKind::kApplied}}) {
    if (wanted == nullptr) continue;
    resize(*wanted, {batch, config_.num_heads, length, length});
    attention_weights(q, k, *wanted, kept.options, kind, context);
  }
  project_output(kept.attended, y, &context);
  if (kept.residual.active()) apply_dropout(y, y, kept.residual, context);
}

void AttentionLayer::backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context* context_pointer) {
  check<OptionError>(saved.x.rank() == 3 && saved.projected.rank() == 3 && saved.projected.size(2) == 3 * config_.width,
                     config_.type, "saved must be what this layer's forward filled: got x ", saved.x, ", projected ",
                     saved.projected);
  const Index batch = saved.x.size(0);
  const Index length = saved.x.size(1);
  check<ShapeError>(dy.sizes() == View<float, 3>::Sizes{batch, length, output_dim()}, config_.type, "dy must be [", batch, ", ",
                    length, ", ", output_dim(), "]: got ", dy);
  check<ShapeError>(dx.is_null() || dx.sizes() == saved.x.view<3>().sizes(), config_.type, "dx must be ", saved.x, ": got ",
                    dx);
  check_rows(config_.type, "dx", dx);
  Context& context = context_or_default(context_pointer);
  if (saved.residual.active() || !has_plain_rows(dy)) {
    resize(saved.dy, {batch, length, output_dim()});
    apply_dropout(dy, saved.dy, saved.residual, context);
    dy = saved.dy;
  }
  View<const float, 3> dattended = dy;  // [B, T, W]
  if (has_output_projection()) {
    resize(saved.dattended, {batch, length, config_.width});
    linear_backward(saved.attended, dy, {out_weight_}, saved.dattended,
                    {out_weight_gradient_, has_bias() ? out_bias_gradient_.data() : nullptr}, context);
    dattended = saved.dattended;
  }
  resize(saved.dprojected, saved.projected.sizes());
  const AttentionGradients<float> gradients{.dq = heads_of<float>(saved.dprojected, 0, config_.num_heads),
                                            .dk = heads_of<float>(saved.dprojected, 1, config_.num_heads),
                                            .dv = heads_of<float>(saved.dprojected, 2, config_.num_heads)};
  const View<const float, 3> attended = saved.attended;
  attention_backward(heads_of<const float>(saved.projected, 0, config_.num_heads),
                     heads_of<const float>(saved.projected, 1, config_.num_heads),
                     heads_of<const float>(saved.projected, 2, config_.num_heads), split_heads(attended, config_.num_heads),
                     saved.lse, split_heads(dattended, config_.num_heads), gradients, saved.options, context);
  linear_backward(saved.x, saved.dprojected, {in_weight_}, dx,
                  {in_weight_gradient_, has_bias() ? in_bias_gradient_.data() : nullptr}, context);
}

std::vector<Parameter> AttentionLayer::parameters() {
  std::vector<Parameter> list;
  const auto add_rows = [&list](const std::string& name, Tensor<float>& value, Tensor<float>& gradient, Index first,
                                Index rows) {
    if (value.count() == 0) return;
    std::vector<Index> sizes = value.sizes();
    sizes[0] = rows;
    const auto row = static_cast<std::size_t>(value.count() / value.size(0));
    const std::size_t begin = static_cast<std::size_t>(first) * row;
    const std::size_t count = static_cast<std::size_t>(rows) * row;
    list.push_back({name, std::move(sizes), value.span().subspan(begin, count), gradient.span().subspan(begin, count)});
  };
  const Index w = config_.width;
  const auto add_input = [&](Role role, Index first, Index rows) {
    add_rows(weight_names_[role], in_weight_, in_weight_gradient_, first, rows);
    add_rows(bias_names_[role], in_bias_, in_bias_gradient_, first, rows);
  };
  if (merged_) {
    add_input(kMerged, 0, 3 * w);
  } else {
    for (const Role role : {kQuery, kKey, kValue}) add_input(role, static_cast<Index>(role) * w, w);
  }
  add_rows(weight_names_[kOutput], out_weight_, out_weight_gradient_, 0, config_.embed_dim);
  add_rows(bias_names_[kOutput], out_bias_, out_bias_gradient_, 0, config_.embed_dim);
  return list;
}

void AttentionLayer::copy_parameters(const AttentionLayer& from) {
  check<OptionError>(from.in_weight_.sizes() == in_weight_.sizes(), config_.type, "layers must have the same sizes: got ",
                     in_weight_, " from ", from.in_weight_);
  check<OptionError>(
      from.has_output_projection() ? config_.output != OutputProjection::kNone : config_.output != OutputProjection::kRequired,
      config_.type, "an output projection must be in both forms or in neither: got ",
      from.has_output_projection() ? "one" : "none", " from ", from.config_.type);
  in_weight_ = from.in_weight_.clone();
  in_bias_ = clone_of(from.in_bias_);
  out_weight_ = clone_of(from.out_weight_);
  out_bias_ = clone_of(from.out_bias_);
  make_gradients();
}

void AttentionLayer::load_state_dict(const StateDict& state, std::string_view prefix) {
  const AttentionSizes sizes{config_.type, config_.embed_dim, config_.width, config_.output, config_.merged, config_.names};
  NamedTensors read = read_attention_parameters(sizes, state, prefix);
  // Into new tensors first: a failure (memory) leaves the layer as it was.
  const auto stacked = [&read](const std::array<const AnyTensor*, kNumRoles>& tensors, std::vector<Index> shape) {
    if (read.merged) return tensors[kMerged] == nullptr ? Tensor<float>() : to_f32(*tensors[kMerged]);
    if (tensors[kQuery] == nullptr) return Tensor<float>();
    Tensor<float> all(std::move(shape));
    auto next = all.span().begin();
    for (const Role role : {kQuery, kKey, kValue}) {
      const Tensor<float> part = to_f32(*tensors[role]);
      next = std::ranges::copy(part.span(), next).out;
    }
    return all;
  };
  Tensor<float> in_weight = stacked(read.weights, {3 * config_.width, config_.embed_dim});
  Tensor<float> in_bias = stacked(read.biases, {3 * config_.width});
  Tensor<float> out_weight = read.weights[kOutput] == nullptr ? Tensor<float>() : to_f32(*read.weights[kOutput]);
  Tensor<float> out_bias = read.biases[kOutput] == nullptr ? Tensor<float>() : to_f32(*read.biases[kOutput]);
  in_weight_ = std::move(in_weight);
  in_bias_ = std::move(in_bias);
  out_weight_ = std::move(out_weight);
  out_bias_ = std::move(out_bias);
  make_gradients();
  merged_ = read.merged;
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    if (!read.weight_names[role].empty()) weight_names_[role] = std::move(read.weight_names[role]);
    if (!read.bias_names[role].empty()) bias_names_[role] = std::move(read.bias_names[role]);
  }
}

}  // namespace nn
}  // namespace v0
}  // namespace qkv
