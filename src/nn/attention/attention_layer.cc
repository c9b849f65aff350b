#include "qkv/nn/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/philox.h"
#include "nn/attention/forward_rows.h"
#include "nn/attention/whole_or_part.h"
#include "nn/parameters/parameters.h"
#include "nn/parameters/synonyms.h"
#include "nn/parameters/tensor_use.h"
#include "nn/products/linear_products.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/rms_norm.h"
#include "qkv/nn/dropout.h"

namespace qkv::inline v0::nn {
namespace {

Context& context_or_default(Context* context) { return context != nullptr ? *context : Context::default_context(); }

Tensor<float> ones(Index count) {
  Tensor<float> tensor({count});
  std::ranges::fill(tensor.span(), 1.0F);
  return tensor;
}

/// Padding between rows of `columns` floats: one cache line where rows would otherwise be multiples of half a page apart and a
/// column would map to a few cache sets. Products with the transpose of such rows take 2 % less time.
Index row_padding(Index columns) { return columns % 512 == 0 ? 16 : 0; }

}  // namespace

AttentionLayer::AttentionLayer(const AttentionLayerConfig& config) : config_(config), merged_(config.merged) {
  if (config_.width == 0) config_.width = config_.embed_dim;
  if (config_.num_kv_heads == 0) config_.num_kv_heads = config_.num_heads;
  check<ShapeError>(config_.embed_dim > 0 && config_.width > 0, config_.type, "embed_dim and d_k must be at least 1: got ",
                    config_.embed_dim, " and ", config_.width);
  check<OptionError>(config_.num_heads > 0 && config_.width % config_.num_heads == 0, config_.type,
                     "num_heads must divide embed_dim: got ", config_.num_heads, " heads for ", config_.width);
  check<OptionError>(config_.num_kv_heads > 0 && config_.num_heads % config_.num_kv_heads == 0, config_.type,
                     "num_kv_heads must divide num_heads: got ", config_.num_kv_heads, " for ", config_.num_heads);
  check<OptionError>(config_.norm_eps > 0 && std::isfinite(config_.norm_eps), config_.type,
                     "norm_eps must be a number above 0: got ", config_.norm_eps);
  if (config_.rotary) rotary_.emplace(head_dim(), *config_.rotary);
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
  const Index rows = projected_width();
  in_weight_ = Tensor<float>({rows, e});
  // Xavier's bound counts the rows of the merged matrix: torch stores q, k, v as one.
  fill_uniform(in_weight_, torch_mha ? std::sqrt(6.0 / static_cast<double>(rows + e)) : linear_bound(e), config_.seed, 0);
  if (config_.bias) in_bias_ = Tensor<float>({rows});
  if (config_.output_now || config_.output == OutputProjection::kRequired) {
    out_weight_ = Tensor<float>({e, w});
    fill_uniform(out_weight_, linear_bound(w), config_.seed, 2);
    if (config_.grouped ? config_.output_bias : config_.bias) out_bias_ = Tensor<float>({e});
  }
  if (!torch_mha) {
    fill_uniform(in_bias_, linear_bound(e), config_.seed, 1);
    fill_uniform(out_bias_, linear_bound(w), config_.seed, 3);
  }
  if (config_.qk_norm != QkNorm::kNone) {
    const bool whole = config_.qk_norm == QkNorm::kVector;
    q_norm_ = ones(whole ? w : head_dim());
    k_norm_ = ones(whole ? kv_width() : head_dim());
  }
  make_gradients();
}

QkNorm AttentionLayer::qk_norm() const {
  if (q_norm_.count() == 0) return QkNorm::kNone;
  return q_norm_.count() == head_dim() ? QkNorm::kHead : QkNorm::kVector;
}

template <class T>
View<T, 4> AttentionLayer::part_of(View<T, 3> projected, int part) const {
  const Index begin = part == 0 ? 0 : config_.width + (part - 1) * kv_width();
  const Index width = part == 0 ? config_.width : kv_width();
  return split_heads(projected.sliced(2, begin, begin + width), width / head_dim());
}

template <class T>
View<T, 4> AttentionLayer::normed_rows(View<T, 3> columns, int part) const {
  const Index begin = part == 0 ? 0 : config_.width, end = config_.width + part * kv_width();
  const Index heads = qk_norm() == QkNorm::kHead ? (end - begin) / head_dim() : 1;
  return split_heads(columns.sliced(2, begin, end), heads);
}

template <class T>
View<T, 4> AttentionLayer::turned_heads(View<T, 3> columns) const {
  const Index turned = config_.width + kv_width();  // q and k: their heads are side by side
  return split_heads(columns.sliced(2, 0, turned), turned / head_dim());
}

template <class T>
void AttentionLayer::position(View<T, 3> projected, const RotaryPositions& positions, Context& context) const {
  if (qk_norm() != QkNorm::kNone) {
    const View<T, 4> q = normed_rows(projected, 0), k = normed_rows(projected, 1);
    rms_norm_forward<T>(q, q_norm_.data(), config_.norm_eps, q, context);
    rms_norm_forward<T>(k, k_norm_.data(), config_.norm_eps, k, context);
  }
  if (rotary_) rotary_->forward(turned_heads(projected), turned_heads(projected), positions, context);
}

template <class T>
void AttentionLayer::unposition(View<T, 3> dprojected, SavedOf<T>& saved, Context& context) {
  if (rotary_) rotary_->backward(turned_heads(dprojected), turned_heads(dprojected), saved.positions, context);
  if (qk_norm() == QkNorm::kNone) return;
  const View<const T, 3> raw = saved.raw;
  const View<T, 4> q = normed_rows(dprojected, 0), k = normed_rows(dprojected, 1);
  rms_norm_backward<T>(normed_rows(raw, 0), q, q_norm_.data(), config_.norm_eps, q, q_norm_gradient_.data(), saved.dq_norm,
                       context);
  rms_norm_backward<T>(normed_rows(raw, 1), k, k_norm_.data(), config_.norm_eps, k, k_norm_gradient_.data(), saved.dk_norm,
                       context);
}

void AttentionLayer::make_gradients() {
  in_weight_gradient_ = zeros_like(in_weight_);
  in_bias_gradient_ = zeros_like(in_bias_);
  out_weight_gradient_ = zeros_like(out_weight_);
  out_bias_gradient_ = zeros_like(out_bias_);
  q_norm_gradient_ = zeros_like(q_norm_);
  k_norm_gradient_ = zeros_like(k_norm_);
}

template <class T>
void AttentionLayer::output_of(View<const T, 3> attended, View<T, 3> y, Context& context) const {
  if (!has_output_projection()) return copy(attended, y);
  linear_forward(attended, weights_of<T>(out_weight_, out_bias_), y, context);
}

AttentionOptions AttentionLayer::attention_options(const ForwardOptions& options) const {
  AttentionOptions inner;
  inner.mask = options.causal.value_or(config_.causal) ? causal_ & options.mask : options.mask;
  inner.empty_row = options.empty_row.value_or(config_.empty_row);
  inner.dropout = {static_cast<double>(config_.dropout), options.seed, training(), options.first_sequence};
  if (inner.dropout.active() && config_.whole_heads > 0) {
    inner.place.first_head = config_.first_head;
    inner.place.heads = config_.whole_heads;
  }
  return inner;
}

template <class T>
void AttentionLayer::check_output(View<const T, 3> y, Index batch, Index length) const {
  check<ShapeError>(y.sizes() == typename View<T, 3>::Sizes{batch, length, output_dim()}, config_.type, "y must be [", batch,
                    ", ", length, ", ", output_dim(), "]: got ", y);
  check_rows(config_.type, "y", y);
}

template <class T>
void AttentionLayer::forward_of(View<const T, 3> x, View<T, 3> y, const ForwardOptions& options, SavedOf<T>* saved) const {
  check<ShapeError>(x.size(2) == config_.embed_dim, config_.type, "x must be [B, T, ", config_.embed_dim, "]: got ", x);
  check_output<T>(y, x.size(0), x.size(1));
  check_part<T>(config_.type, options, x.size(1));
  SavedOf<T> local;
  SavedOf<T>& kept = saved != nullptr ? *saved : local;
  if (saved != nullptr || !has_plain_rows(x)) {
    resize(kept.x, x.sizes());
    copy<T>(x, kept.x);
    x = kept.x;
  }
  Context& context = context_or_default(options.context);
  const ForwardRows<T> rows(saved, {x.size(0), x.size(1), projected_width()}, config_.width, config_.num_heads, context);
  const View<T, 3>& projected = rows.projected;
  linear_forward(x, weights_of<T>(in_weight_, in_bias_), projected, context);
  if (saved != nullptr && qk_norm() != QkNorm::kNone) {
    const Index normed = config_.width + kv_width();
    resize(kept.raw, std::array{x.size(0), x.size(1), normed});
    copy<T>(projected.sliced(2, 0, normed), kept.raw);
  }
  kept.positions = positions_of(options);
  position(projected, kept.positions, context);
  attend(rows, y, options, kept);
}

template <class T>
void AttentionLayer::forward_projected(View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const {
  check<ShapeError>(saved.projected.rank() == 3 && saved.projected.size(2) == projected_width(), config_.type,
                    "saved.projected must be [B, T, ", projected_width(), "]: got ", saved.projected);
  const View<T, 3> projected = saved.projected;
  if (!y.is_null()) check_output<T>(y, projected.size(0), projected.size(1));
  check_part<T>(config_.type, options, projected.size(1));
  const ForwardRows<T> rows(&saved, projected.sizes(), config_.width, config_.num_heads, context_or_default(options.context));
  attend(rows, y, options, saved);
}

template <class T>
void AttentionLayer::attend(const ForwardRows<T>& rows, View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const {
  const Index batch = rows.projected.size(0), length = rows.projected.size(1);
  Context& context = context_or_default(options.context);
  saved.options = attention_options(options);
  saved.part = options.part;
  saved.residual = {static_cast<double>(config_.residual_dropout), options.seed, training(), options.first_sequence};

  const auto q = part_of<const T>(rows.projected, 0);  // [B, H, T, W/H]
  const auto k = part_of<const T>(rows.projected, 1);
  const auto v = part_of<const T>(rows.projected, 2);
  for (Tensor<float>* wanted : {options.weights, options.applied}) {
    if (wanted != nullptr) resize(*wanted, std::array{batch, config_.num_heads, length, length});
  }
  AttentionOutputs<T> outputs{.out = split_heads(rows.attended, config_.num_heads), .lse = rows.lse};
  if (saved.part == nullptr) outputs.lse_low = rows.lse_low;
  if (options.weights != nullptr) {
    outputs.weights = *options.weights;
  } else if (options.applied != nullptr) {
    outputs.weights = *options.applied;
    outputs.kind = WeightsKind::kApplied;
  }
  forward_attention<T>(saved.part, q, k, v, outputs, saved.options, context);
  if (options.weights != nullptr && options.applied != nullptr) {
    attention_forward(q, k, {}, {.weights = *options.applied, .kind = WeightsKind::kApplied}, saved.options, context);
  }
  if (y.is_null()) return;
  output_of<T>(rows.attended, y, context);
  if (saved.residual.active()) apply_dropout(y, y, saved.residual, context, tokens_of(saved.part));
}

template <class T>
void AttentionLayer::backward_of(View<const T, 3> dy, SavedOf<T>& saved, View<T, 3> dx, Context& context) {
  check<OptionError>(saved.x.rank() == 3 && saved.projected.rank() == 3 && saved.projected.size(2) == projected_width(),
                     config_.type, "saved must come from this layer's forward: got x ", saved.x, ", projected ",
                     saved.projected);
  check<ShapeError>(dx.is_null() || dx.sizes() == View<const T, 3>(saved.x).sizes(), config_.type, "dx must be ", saved.x,
                    ": got ", dx);
  check_rows(config_.type, "dx", dx);
  backward_projected(dy, saved, context);
  const View<T, 3> dprojected = View<T, 3>(saved.dprojected).sliced(2, 0, projected_width());
  unposition(dprojected, saved, context);
  linear_backward(View<const T, 3>(saved.x), View<const T, 3>(dprojected), weights_of<T>(in_weight_, {}), dx,
                  {in_weight_gradient_, has_bias() ? in_bias_gradient_.data() : nullptr}, context);
}

template <class T>
View<const T, 3> AttentionLayer::backward_projected(View<const T, 3> dy, SavedOf<T>& saved, Context& context) {
  check<OptionError>(saved.projected.rank() == 3 && saved.projected.size(2) == projected_width(), config_.type,
                     "saved must come from this layer's forward: got projected ", saved.projected);
  const Index batch = saved.projected.size(0);
  const Index length = saved.projected.size(1);
  if (dy.is_null()) return backward_attended(View<const T, 3>(saved.dattended), saved, context);
  check<ShapeError>(dy.sizes() == typename View<T, 3>::Sizes{batch, length, output_dim()}, config_.type, "dy must be [", batch,
                    ", ", length, ", ", output_dim(), "]: got ", dy);
  if (saved.residual.active() || !has_plain_rows(dy)) {
    resize(saved.dy, std::array{batch, length, output_dim()});
    apply_dropout(dy, View<T, 3>(saved.dy), saved.residual, context, tokens_of(saved.part));
    dy = saved.dy;
  }
  View<const T, 3> dattended = dy;  // [B, T, W]
  if (has_output_projection()) {
    resize(saved.dattended, std::array{batch, length, config_.width});
    linear_backward(View<const T, 3>(saved.attended), dy, weights_of<T>(out_weight_, {}), View<T, 3>(saved.dattended),
                    {out_weight_gradient_, has_output_bias() ? out_bias_gradient_.data() : nullptr}, context);
    dattended = saved.dattended;
  }
  return backward_attended(dattended, saved, context);
}

template <class T>
View<const T, 3> AttentionLayer::backward_attended(View<const T, 3> dattended, SavedOf<T>& saved, Context& context) {
  const Index columns = projected_width();
  resize(saved.dprojected, std::array{dattended.size(0), dattended.size(1), columns + row_padding(columns)});
  const View<T, 3> dprojected = View<T, 3>(saved.dprojected).sliced(2, 0, columns);  // [B, T, P]
  AttentionGradients<T> gradients{
      .dq = part_of<T>(dprojected, 0), .dk = part_of<T>(dprojected, 1), .dv = part_of<T>(dprojected, 2)};
  if (saved.part == nullptr) gradients.lse_low = saved.lse_low;
  const View<const T, 3> attended = saved.attended;
  backward_attention<T>(saved.part, part_of<const T>(saved.projected, 0), part_of<const T>(saved.projected, 1),
                        part_of<const T>(saved.projected, 2), split_heads(attended, config_.num_heads), saved.lse,
                        split_heads(dattended, config_.num_heads), gradients, saved.options, context);
  return dprojected;
}

#define QKV_DEFINE(T)                                                                                                   \
  template void AttentionLayer::forward_projected(View<T, 3>, const ForwardOptions&, SavedOf<T>&) const;                \
  template View<const T, 3> AttentionLayer::backward_projected(View<const T, 3>, SavedOf<T>&, Context&);                \
  template void AttentionLayer::position(View<T, 3>, const RotaryPositions&, Context&) const;                           \
  template void AttentionLayer::output_of(View<const T, 3>, View<T, 3>, Context&) const;                                \
  void AttentionLayer::forward_into(View<const T, 3> x, View<T, 3> y, const ForwardOptions& options, SavedOf<T>* saved) \
      const {                                                                                                           \
    forward_of(x, y, options, saved);                                                                                   \
  }                                                                                                                     \
  void AttentionLayer::backward_into(View<const T, 3> dy, SavedOf<T>& saved, View<T, 3> dx, Context& context) {         \
    backward_of(dy, saved, dx, context);                                                                                \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

void AttentionLayer::backward_projection(View<const float, 3> x, View<const float, 3> dprojected, View<float, 3> dx,
                                         Context& context) {
  check<UnsupportedError>(!rotary_ && qk_norm() == QkNorm::kNone, config_.type,
                          "the gradient of project alone is not computed for a layer with norms or rotary positions");
  check<ShapeError>(x.size(2) == config_.embed_dim && dprojected.size(0) == x.size(0) && dprojected.size(1) == x.size(1) &&
                        dprojected.size(2) == projected_width(),
                    config_.type, "x must be [B, T, ", config_.embed_dim, "] and dprojected [B, T, ", projected_width(),
                    "]: got ", x, " and ", dprojected);
  check<ShapeError>(dx.is_null() || dx.sizes() == x.sizes(), config_.type, "dx must have the sizes of x: got ", dx, " for ", x);
  check_rows(config_.type, "x", x);
  check_rows(config_.type, "dprojected", dprojected);
  check_rows(config_.type, "dx", dx);
  linear_backward(x, dprojected, weights_of<float>(in_weight_, {}), dx,
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
  const Index w = config_.width, kv = kv_width();
  const auto add_input = [&](Role role, Index first, Index rows) {
    add_rows(weight_names_[role], in_weight_, in_weight_gradient_, first, rows);
    add_rows(bias_names_[role], in_bias_, in_bias_gradient_, first, rows);
  };
  if (merged_) {
    add_input(kMerged, 0, w + 2 * kv);
  } else {
    add_input(kQuery, 0, w);
    add_input(kKey, w, kv);
    add_input(kValue, w + kv, kv);
  }
  add_rows(weight_names_[kOutput], out_weight_, out_weight_gradient_, 0, config_.embed_dim);
  add_rows(bias_names_[kOutput], out_bias_, out_bias_gradient_, 0, config_.embed_dim);
  add_rows(std::string(kQueryNorm), q_norm_, q_norm_gradient_, 0, q_norm_.count());
  add_rows(std::string(kKeyNorm), k_norm_, k_norm_gradient_, 0, k_norm_.count());
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
  q_norm_ = clone_of(from.q_norm_);
  k_norm_ = clone_of(from.k_norm_);
  make_gradients();
}

void AttentionLayer::load_state_dict(const StateDict& state, std::string_view prefix) {
  const AttentionSizes sizes{.type = config_.type,
                             .embed_dim = config_.embed_dim,
                             .width = config_.width,
                             .kv_width = kv_width(),
                             .head_dim = head_dim(),
                             .grouped = config_.grouped,
                             .norm = config_.qk_norm,
                             .output = config_.output,
                             .merged = config_.merged,
                             .names = config_.names};
  NamedTensors read = read_attention_parameters(sizes, state, prefix);
  // Into new tensors first: after a failure (memory) the layer is unchanged.
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
  Tensor<float> in_weight = stacked(read.weights, {projected_width(), config_.embed_dim});
  Tensor<float> in_bias = stacked(read.biases, {projected_width()});
  Tensor<float> out_weight = read.weights[kOutput] == nullptr ? Tensor<float>() : to_f32(*read.weights[kOutput]);
  Tensor<float> out_bias = read.biases[kOutput] == nullptr ? Tensor<float>() : to_f32(*read.biases[kOutput]);
  Tensor<float> q_norm = read.q_norm == nullptr ? Tensor<float>() : to_f32(*read.q_norm);
  Tensor<float> k_norm = read.k_norm == nullptr ? Tensor<float>() : to_f32(*read.k_norm);
  in_weight_ = std::move(in_weight);
  in_bias_ = std::move(in_bias);
  out_weight_ = std::move(out_weight);
  out_bias_ = std::move(out_bias);
  q_norm_ = std::move(q_norm);
  k_norm_ = std::move(k_norm);
  make_gradients();
  merged_ = read.merged;
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    if (!read.weight_names[role].empty()) weight_names_[role] = std::move(read.weight_names[role]);
    if (!read.bias_names[role].empty()) bias_names_[role] = std::move(read.bias_names[role]);
  }
}

}  // namespace qkv::inline v0::nn
