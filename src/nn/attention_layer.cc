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
View<T, 4> heads_of(View<T, 3> projected, int part, Index num_heads) {
  const Index width = projected.size(2) / 3;
  return split_heads(projected.sliced(2, part * width, (part + 1) * width), num_heads);
}

/// What keeps rows of `columns` floats from lying whole pages' halves apart, where a column of them would fall into a few sets
/// of the caches: one line. Products with the transpose of such rows take 2 % less time.
Index row_padding(Index columns) { return columns % 512 == 0 ? 16 : 0; }

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
  inner.mask = options.causal.value_or(config_.causal) ? causal_ & options.mask : options.mask;
  inner.empty_row = options.empty_row.value_or(config_.empty_row);
  inner.dropout = {static_cast<double>(config_.dropout), options.seed, training(), options.first_sequence};
  return inner;
}

void AttentionLayer::check_output(View<const float, 3> y, Index batch, Index length) const {
  check<ShapeError>(y.sizes() == View<float, 3>::Sizes{batch, length, output_dim()}, config_.type, "y must be [", batch, ", ",
                    length, ", ", output_dim(), "]: got ", y);
  check_rows(config_.type, "y", y);
}

void AttentionLayer::forward_into(View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const {
  check<ShapeError>(x.size(2) == config_.embed_dim, config_.type, "x must be [B, T, ", config_.embed_dim, "]: got ", x);
  check_output(y, x.size(0), x.size(1));
  Saved local;
  Saved& kept = saved != nullptr ? *saved : local;
  if (saved != nullptr || !has_plain_rows(x)) {
    resize(kept.x, x.sizes());
    copy(x, kept.x);
    x = kept.x;
  }
  resize(kept.projected, std::array{x.size(0), x.size(1), 3 * config_.width});
  project(x, kept.projected, options.context);
  forward_projected(y, options, kept);
}

void AttentionLayer::forward_projected(View<float, 3> y, const ForwardOptions& options, Saved& saved) const {
  check<ShapeError>(saved.projected.rank() == 3 && saved.projected.size(2) == 3 * config_.width, config_.type,
                    "saved.projected must be [B, T, ", 3 * config_.width, "]: got ", saved.projected);
  const Index batch = saved.projected.size(0);
  const Index length = saved.projected.size(1);
  check_output(y, batch, length);
  Context& context = context_or_default(options.context);
  resize(saved.attended, std::array{batch, length, config_.width});  // [B, T, W]
  resize(saved.lse, std::array{batch, config_.num_heads, length});   // [B, H, T]
  saved.options = attention_options(options);
  saved.residual = {static_cast<double>(config_.residual_dropout), options.seed, training(), options.first_sequence};

  const auto q = heads_of<const float>(saved.projected, 0, config_.num_heads);  // [B, H, T, W/H]
  const auto k = heads_of<const float>(saved.projected, 1, config_.num_heads);
  const auto v = heads_of<const float>(saved.projected, 2, config_.num_heads);
  const View<float, 4> attended = split_heads(saved.attended.view<3>(), config_.num_heads);
  for (Tensor<float>* wanted : {options.weights, options.applied}) {
    if (wanted != nullptr) resize(*wanted, std::array{batch, config_.num_heads, length, length});
  }
  if (options.weights != nullptr) {
    attention_forward_with_weights(q, k, v, attended, saved.lse, *options.weights, saved.options, WeightsKind::kSoftmax,
                                   context);
    if (options.applied != nullptr) attention_weights(q, k, *options.applied, saved.options, WeightsKind::kApplied, context);
  } else if (options.applied != nullptr) {
    attention_forward_with_weights(q, k, v, attended, saved.lse, *options.applied, saved.options, WeightsKind::kApplied,
                                   context);
  } else {
    attention_forward(q, k, v, attended, saved.lse, saved.options, context);
  }
  project_output(saved.attended, y, &context);
  if (saved.residual.active()) apply_dropout(y, y, saved.residual, context);
}

void AttentionLayer::backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context* context) {
  check<OptionError>(saved.x.rank() == 3 && saved.projected.rank() == 3 && saved.projected.size(2) == 3 * config_.width,
                     config_.type, "saved must be what this layer's forward filled: got x ", saved.x, ", projected ",
                     saved.projected);
  check<ShapeError>(dx.is_null() || dx.sizes() == saved.x.view<3>().sizes(), config_.type, "dx must be ", saved.x, ": got ",
                    dx);
  check_rows(config_.type, "dx", dx);
  backward_projection(saved.x, backward_projected(dy, saved, context), dx, context);
}

View<const float, 3> AttentionLayer::backward_projected(View<const float, 3> dy, Saved& saved, Context* context_pointer) {
  check<OptionError>(saved.projected.rank() == 3 && saved.projected.size(2) == 3 * config_.width, config_.type,
                     "saved must be what this layer's forward filled: got projected ", saved.projected);
  const Index batch = saved.projected.size(0);
  const Index length = saved.projected.size(1);
  check<ShapeError>(dy.sizes() == View<float, 3>::Sizes{batch, length, output_dim()}, config_.type, "dy must be [", batch, ", ",
                    length, ", ", output_dim(), "]: got ", dy);
  Context& context = context_or_default(context_pointer);
  if (saved.residual.active() || !has_plain_rows(dy)) {
    resize(saved.dy, std::array{batch, length, output_dim()});
    apply_dropout(dy, saved.dy, saved.residual, context);
    dy = saved.dy;
  }
  View<const float, 3> dattended = dy;  // [B, T, W]
  if (has_output_projection()) {
    resize(saved.dattended, std::array{batch, length, config_.width});
    linear_backward(saved.attended, dy, {out_weight_}, saved.dattended,
                    {out_weight_gradient_, has_bias() ? out_bias_gradient_.data() : nullptr}, context);
    dattended = saved.dattended;
  }
  const Index columns = 3 * config_.width;
  resize(saved.dprojected, std::array{batch, length, columns + row_padding(columns)});
  const View<float, 3> dprojected = saved.dprojected.view<3>().sliced(2, 0, columns);  // [B, T, 3W]
  const AttentionGradients<float> gradients{.dq = heads_of<float>(dprojected, 0, config_.num_heads),
                                            .dk = heads_of<float>(dprojected, 1, config_.num_heads),
                                            .dv = heads_of<float>(dprojected, 2, config_.num_heads)};
  const View<const float, 3> attended = saved.attended;
  attention_backward(heads_of<const float>(saved.projected, 0, config_.num_heads),
                     heads_of<const float>(saved.projected, 1, config_.num_heads),
                     heads_of<const float>(saved.projected, 2, config_.num_heads), split_heads(attended, config_.num_heads),
                     saved.lse, split_heads(dattended, config_.num_heads), gradients, saved.options, context);
  return dprojected;
}

void AttentionLayer::backward_projection(View<const float, 3> x, View<const float, 3> dprojected, View<float, 3> dx,
                                         Context* context) {
  check<ShapeError>(x.size(2) == config_.embed_dim && dprojected.size(0) == x.size(0) && dprojected.size(1) == x.size(1) &&
                        dprojected.size(2) == 3 * config_.width,
                    config_.type, "x must be [B, T, ", config_.embed_dim, "] and dprojected [B, T, ", 3 * config_.width,
                    "]: got ", x, " and ", dprojected);
  check<ShapeError>(dx.is_null() || dx.sizes() == x.sizes(), config_.type, "dx must have the sizes of x: got ", dx, " for ", x);
  check_rows(config_.type, "x", x);
  check_rows(config_.type, "dprojected", dprojected);
  check_rows(config_.type, "dx", dx);
  linear_backward(x, dprojected, {in_weight_}, dx, {in_weight_gradient_, has_bias() ? in_bias_gradient_.data() : nullptr},
                  context_or_default(context));
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
