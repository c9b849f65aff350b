// AttentionLayer on rows of float or bf16: forward, a step over a cache, backward.
#pragma once

#include <algorithm>
#include <array>

#include "core/check.h"
#include "nn/attention/forward_rows.h"
#include "nn/parameters/tensor_use.h"
#include "nn/products/linear_products.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/norm.h"
#include "qkv/nn/attention_layer.h"
#include "qkv/nn/dropout.h"

namespace qkv::inline v0::nn {

/// Positions of a part's tokens in their sequences; empty: 0, 1, ...
inline std::span<const Index> tokens_of(const SequencePart* part) {
  return part == nullptr ? std::span<const Index>() : std::span<const Index>(part->positions);
}

template <class T> struct AttentionLayer::Run {
  const AttentionLayer& l;

  std::string_view type() const { return l.form_.type; }

  /// q, k or v (0, 1, 2) of projected [B, T, P], as [B, H, T, D].
  template <class E> View<E, 4> part(View<E, 3> projected, int which) const {
    const Index begin = which == 0 ? 0 : l.width() + (which - 1) * l.kv_width();
    const Index heads = which == 0 ? l.num_heads() : l.num_kv_heads();
    return split_heads(projected.sliced(2, begin, begin + heads * l.head_dim()), heads);
  }
  /// q or k (0, 1) within columns [B, T, W + Wkv, ...], one row per vector that its norm is over.
  template <class E> View<E, 4> normed_rows(View<E, 3> columns, int which) const {
    const Index begin = which == 0 ? 0 : l.width(), end = l.width() + which * l.kv_width();
    const Index heads = l.qk_norm() == QkNorm::kHead ? (end - begin) / l.head_dim() : 1;
    return split_heads(columns.sliced(2, begin, end), heads);
  }
  NormWeights norm_of(const Tensor<float>& weight) const {
    return {.weight = weight.data(), .eps = l.config_.norm_eps};
  }
  /// The heads of q and k, side by side: what the rotary positions rotate.
  View<T, 4> turned_heads(View<T, 3> columns) const {
    return split_heads(columns.sliced(2, 0, l.width() + l.kv_width()), l.num_heads() + l.num_kv_heads());
  }

  /// Norms and rotary positions on projected [B, T, P], in place.
  void position(View<T, 3> projected, const RotaryPositions& positions, Context& context) const {
    if (l.qk_norm() != QkNorm::kNone) {
      const View<T, 4> q = normed_rows(projected, 0), k = normed_rows(projected, 1);
      norm_forward<T>(q, norm_of(l.values_.q_norm), q, context);
      norm_forward<T>(k, norm_of(l.values_.k_norm), k, context);
    }
    if (l.rotary_) l.rotary_->forward(turned_heads(projected), turned_heads(projected), positions, context);
  }

  void project(View<const T, 3> x, View<T, 3> projected, Context& context) const {
    linear_forward(x, weights_of<T>(l.values_.in_weight, l.values_.in_bias), projected, context);
  }
  View<const float, 2> output_weight() const {
    return l.has_output_projection() ? View<const float, 2>(l.values_.out_weight) : View<const float, 2>();
  }
  void output(View<const T, 3> attended, View<T, 3> y, Context& context) const {
    if (!l.has_output_projection()) return copy(attended, y);
    linear_forward(attended, weights_of<T>(l.values_.out_weight, l.values_.out_bias), y, context);
  }

  void check_output(View<const T, 3> y, Index batch, Index length) const {
    check<ShapeError>(y.sizes() == typename View<T, 3>::Sizes{batch, length, l.output_dim()}, type(), "y must be [",
        batch, ", ", length, ", ", l.output_dim(), "]: got ", y);
    check_rows(type(), "y", y);
  }
  void check_cut(std::span<const Index> cut) const {
    const Index heads = l.whole_heads_ > 0 ? l.whole_heads_ : l.num_heads();
    for (const Index head : cut)
      check<OptionError>(
          head >= 0 && head < heads, type(), "cut heads must be among the layer's ", heads, ": got head ", head);
  }
  void check_part(const ForwardOptions& options, Index length) const {
    check_cut(options.cut);
    check<OptionError>(options.weights == nullptr || options.weights != options.applied, type(),
        "weights and applied must be two tensors: got one for both");
    const RotaryPositions& given = options.positions;
    check<OptionError>(
        (l.rotary_ && options.part == nullptr) || (given.offset == 0 && given.offsets.empty() && given.ids.is_null()),
        type(), "positions are read by layers with rotary positions that get whole sequences: leave them out");
    if (options.part == nullptr) return;
    const auto held = static_cast<Index>(options.part->positions.size());
    check<UnsupportedError>(std::is_same_v<T, float>, type(), "parts of sequences must be f32: got bf16");
    check<ShapeError>(held == length, type(), "x must hold the tokens of options.part, ", held, ": got ", length);
    check<UnsupportedError>(options.weights == nullptr && options.applied == nullptr, type(),
        "weights and applied are of whole sequences: leave out options.part");
  }

  void forward(View<const T, 3> x, View<T, 3> y, const ForwardOptions& options, SavedOf<T>* saved) const {
    check<ShapeError>(x.size(2) == l.embed_dim(), type(), "x must be [B, T, ", l.embed_dim(), "]: got ", x);
    check_output(y, x.size(0), x.size(1));
    check_part(options, x.size(1));
    SavedOf<T> local;
    SavedOf<T>& kept = saved != nullptr ? *saved : local;
    if (saved != nullptr || !has_plain_rows(x)) {
      resize(kept.x, x.sizes());
      copy<T>(x, kept.x);
      x = kept.x;
    }
    Context& context = context_of(options);
    const ForwardRows<T> rows(saved, {x.size(0), x.size(1), l.projected_width()}, l.width(), l.num_heads(), context);
    project(x, rows.projected, context);
    if (saved != nullptr && l.qk_norm() != QkNorm::kNone) {
      const Index normed = l.width() + l.kv_width();
      resize(kept.raw, std::array{x.size(0), x.size(1), normed});
      copy<T>(rows.projected.sliced(2, 0, normed), kept.raw);
    }
    kept.positions = options.positions;
    if (options.part != nullptr) {
      const std::span<const Index> held = tokens_of(options.part);
      kept.positions = {.ids = View<const Index, 2>(held.data(), {1, static_cast<Index>(held.size())})};
    }
    position(rows.projected, kept.positions, context);
    attend(rows, y, options, kept);
  }

  /// y from saved.projected; null: it ends at saved.attended.
  void forward_projected(View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const {
    check<ShapeError>(saved.projected.rank() == 3 && saved.projected.size(2) == l.projected_width(), type(),
        "saved.projected must be [B, T, ", l.projected_width(), "]: got ", saved.projected);
    const View<T, 3> projected = saved.projected;
    if (!y.is_null()) check_output(y, projected.size(0), projected.size(1));
    check_part(options, projected.size(1));
    attend(ForwardRows<T>(&saved, projected.sizes(), l.width(), l.num_heads(), context_of(options)), y, options, saved);
  }

  /// x [B, T, W], side by side what heads write: 0 for those of `cut`.
  void cut_heads(View<T, 3> x, std::span<const Index> cut) const {
    for (const Index head : cut) {
      const Index own = head - l.first_head_;
      if (own < 0 || own >= l.num_heads()) continue;
      for (Index b = 0; b < x.size(0); ++b)
        for (Index i = 0; i < x.size(1); ++i) std::fill_n(&x(b, i, own * l.head_dim()), l.head_dim(), T{});
    }
  }

  AttentionOptions attention_options(const ForwardOptions& options) const {
    AttentionOptions inner;
    inner.scale = options.scale;
    inner.mask = options.causal.value_or(*l.config_.causal) ? l.causal_ & options.mask : options.mask;
    inner.empty_row = options.empty_row.value_or(*l.config_.empty_row);
    inner.dropout = {static_cast<double>(*l.config_.dropout), options.seed, l.training(), options.first_sequence};
    if (l.whole_heads_ > 0) {
      inner.part.first_head = l.first_head_;
      inner.part.heads = l.whole_heads_;
    }
    return inner;
  }

  /// The rest of forward, from rows.projected on. saved gets what is not a tensor.
  void attend(const ForwardRows<T>& rows, View<T, 3> y, const ForwardOptions& options, SavedOf<T>& saved) const {
    const Index batch = rows.projected.size(0), length = rows.projected.size(1);
    Context& context = context_of(options);
    saved.options = attention_options(options);
    saved.part = options.part;
    saved.cut.assign(options.cut.begin(), options.cut.end());
    saved.residual = {
        static_cast<double>(*l.config_.residual_dropout), options.seed, l.training(), options.first_sequence};

    const auto q = part<const T>(rows.projected, 0);  // [B, H, T, W/H]
    const auto k = part<const T>(rows.projected, 1);
    const auto v = part<const T>(rows.projected, 2);
    for (Tensor<float>* wanted : {options.weights, options.applied}) {
      if (wanted != nullptr) resize(*wanted, std::array{batch, l.num_heads(), length, length});
    }
    AttentionOutputs<T> outputs{.out = split_heads(rows.attended, l.num_heads()), .lse = rows.lse};
    if (saved.part == nullptr) outputs.lse_low = rows.lse_low;
    if (options.weights != nullptr) {
      outputs.weights = *options.weights;
    } else if (options.applied != nullptr) {
      outputs.weights = *options.applied;
      outputs.kind = WeightsKind::kApplied;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (saved.part != nullptr) saved.part->forward(q, k, v, outputs.out, outputs.lse, saved.options);
    }
    if (saved.part == nullptr) attention_forward(q, k, v, outputs, saved.options, context);
    if (options.weights != nullptr && options.applied != nullptr) {
      attention_forward(q, k, {}, {.weights = *options.applied, .kind = WeightsKind::kApplied}, saved.options, context);
    }
    cut_heads(rows.attended, saved.cut);
    if (y.is_null()) return;
    output(rows.attended, y, context);
    if (saved.residual.active()) apply_dropout(y, y, saved.residual, context, tokens_of(saved.part));
  }

  void step(View<const T, 3> x, View<T, 3> y, KVCache& cache, StepMemoryOf<T>& memory, const Mask& mask,
      Context& context, std::span<const Index> cut) const {
    check_cut(cut);
    const Index batch = x.size(0), length = x.size(1);
    const std::span<const Index> sequences = cache.sequences();
    check<ShapeError>(x.size(2) == l.embed_dim() && batch == static_cast<Index>(sequences.size()) &&
                          y.sizes() == typename View<T, 3>::Sizes{batch, length, l.output_dim()},
        type(), "x must be [sequences of the cache, n, ", l.embed_dim(), "] and y its output: got x ", x, ", y ", y,
        ", ", sequences.size(), " sequences");
    check<ShapeError>(cache.config().num_kv_heads == l.num_kv_heads() && cache.config().head_dim == l.head_dim(),
        type(), "the cache must have num_kv_heads ", l.num_kv_heads(), " and head_dim ", l.head_dim(), ": got ",
        cache.config().num_kv_heads, " and ", cache.config().head_dim);
    check_rows(type(), "x", x, "y", y);
    memory.positions.resize(sequences.size());
    std::ranges::transform(
        sequences, memory.positions.begin(), [&cache](Index sequence) { return cache.length(sequence); });
    resize(memory.projected, std::array{batch, length, l.projected_width()});
    resize(memory.attended, std::array{batch, length, l.width()});
    project(x, memory.projected, context);
    position(memory.projected, {.offsets = memory.positions}, context);
    const View<const T, 3> projected = memory.projected;
    cache.append(part(projected, 1), part(projected, 2));
    const View<T, 3> attended = memory.attended;
    attention_forward(part(projected, 0), cache.key_value(), {.out = split_heads(attended, l.num_heads())},
        {.mask = l.last_sees_last_ & mask,
            .empty_row = *l.config_.empty_row == EmptyRow::kNaN ? EmptyRow::kNaN : EmptyRow::kZero},
        context);
    cut_heads(attended, cut);
    output(attended, y, context);
  }

  static Context& context_of(const ForwardOptions& options) {
    return options.context != nullptr ? *options.context : Context::default_context();
  }
};

template <class T> struct AttentionLayer::Back {
  AttentionLayer& l;
  Run<T> run{l};

  /// The gradients of a linear map of l; those of a bias where it has one.
  static LinearGradients gradients_of(Tensor<float>& weight, Tensor<float>& bias) {
    return {weight, bias.count() != 0 ? bias.data() : nullptr};
  }

  template <class E> static bool is(const Tensor<E>& x, Index first, Index second, Index third) {
    return x.rank() == 3 && x.size(0) == first && x.size(1) == second && x.size(2) == third;
  }
  /// Sizes of what backward_projected reads.
  void check_saved(const SavedOf<T>& saved) const {
    const Tensor<T>& p = saved.projected;
    const auto has_lse = [&](const Tensor<float>& lse) { return is(lse, p.size(0), l.num_heads(), p.size(1)); };
    check<OptionError>(p.rank() == 3 && p.size(2) == l.projected_width() &&
                           is(saved.attended, p.size(0), p.size(1), l.width()) && has_lse(saved.lse) &&
                           has_lse(saved.lse_low),
        run.type(), "saved must come from this layer's forward: got projected ", p, ", attended ", saved.attended,
        ", lse ", saved.lse);
  }

  void backward(View<const T, 3> dy, SavedOf<T>& saved, View<T, 3> dx, Context& context) {
    check_saved(saved);
    const Index batch = saved.projected.size(0), length = saved.projected.size(1);
    check<OptionError>(is(saved.x, batch, length, l.embed_dim()) &&
                           (l.qk_norm() == QkNorm::kNone || is(saved.raw, batch, length, l.width() + l.kv_width())),
        run.type(), "saved must come from this layer's forward: got x ", saved.x, ", projected ", saved.projected);
    check<ShapeError>(dx.is_null() || dx.sizes() == View<const T, 3>(saved.x).sizes(), run.type(), "dx must be ",
        saved.x, ": got ", dx);
    check_rows(run.type(), "dx", dx);
    backward_projected(dy, saved, context);
    const View<T, 3> dprojected = View<T, 3>(saved.dprojected).sliced(2, 0, l.projected_width());
    unposition(dprojected, saved, context);
    backward_projection(saved.x, dprojected, dx, context);
  }
  void backward_projection(View<const T, 3> x, View<const T, 3> dprojected, View<T, 3> dx, Context& context) {
    linear_backward(x, dprojected, weights_of<T>(l.values_.in_weight, {}), dx,
        gradients_of(l.gradients_.in_weight, l.gradients_.in_bias), context);
  }

  /// The gradient of saved.projected, a view of saved. dy null: it starts from saved.dattended.
  View<const T, 3> backward_projected(View<const T, 3> dy, SavedOf<T>& saved, Context& context) {
    check_saved(saved);
    const Index batch = saved.projected.size(0), length = saved.projected.size(1);
    if (dy.is_null()) {
      check<OptionError>(is(saved.dattended, batch, length, l.width()), run.type(), "saved.dattended must be [", batch,
          ", ", length, ", ", l.width(), "]: got ", saved.dattended);
      return backward_attended(View<const T, 3>(saved.dattended), saved, context);
    }
    check<ShapeError>(dy.sizes() == typename View<T, 3>::Sizes{batch, length, l.output_dim()}, run.type(),
        "dy must be [", batch, ", ", length, ", ", l.output_dim(), "]: got ", dy);
    if (saved.residual.active() || !has_plain_rows(dy)) {
      resize(saved.dy, std::array{batch, length, l.output_dim()});
      apply_dropout(dy, View<T, 3>(saved.dy), saved.residual, context, tokens_of(saved.part));
      dy = saved.dy;
    }
    View<const T, 3> dattended = dy;  // [B, T, W]
    if (l.has_output_projection()) {
      resize(saved.dattended, std::array{batch, length, l.width()});
      linear_backward(View<const T, 3>(saved.attended), dy, weights_of<T>(l.values_.out_weight, {}),
          View<T, 3>(saved.dattended), gradients_of(l.gradients_.out_weight, l.gradients_.out_bias), context);
      dattended = saved.dattended;
    }
    return backward_attended(dattended, saved, context);
  }

 private:
  View<const T, 3> backward_attended(View<const T, 3> dattended, SavedOf<T>& saved, Context& context) {
    if (!saved.cut.empty()) {
      resize(saved.dattended, dattended.sizes());
      if (dattended.data() != saved.dattended.data()) copy<T>(dattended, saved.dattended);
      run.cut_heads(saved.dattended, saved.cut);
      dattended = saved.dattended;
    }
    const Index columns = l.projected_width();
    // Rows that would be multiples of half a page apart get a cache line of padding, since a column of them would map
    // to a few cache sets. Products with the transpose of such rows take 2 % less time.
    const Index padding = columns % 512 == 0 ? 16 : 0;
    resize(saved.dprojected, std::array{dattended.size(0), dattended.size(1), columns + padding});
    const View<T, 3> dprojected = View<T, 3>(saved.dprojected).sliced(2, 0, columns);  // [B, T, P]
    AttentionGradients<T> gradients{
        .dq = run.part(dprojected, 0), .dk = run.part(dprojected, 1), .dv = run.part(dprojected, 2)};
    if (saved.part == nullptr) gradients.lse_low = saved.lse_low;
    const View<const T, 3> projected = saved.projected, attended = saved.attended;
    const auto q = run.part(projected, 0), k = run.part(projected, 1), v = run.part(projected, 2);
    const auto out = split_heads(attended, l.num_heads()), dout = split_heads(dattended, l.num_heads());
    if constexpr (std::is_same_v<T, float>) {
      if (saved.part != nullptr) saved.part->backward(q, k, v, out, saved.lse, dout, gradients, saved.options);
    }
    if (saved.part == nullptr) attention_backward(q, k, v, out, saved.lse, dout, gradients, saved.options, context);
    return dprojected;
  }

  /// Backward of position: the gradient [B, T, P] in place, norms' += .
  void unposition(View<T, 3> dprojected, SavedOf<T>& saved, Context& context) {
    const View<T, 4> heads = run.turned_heads(dprojected);
    if (l.rotary_) l.rotary_->backward(heads, heads, saved.positions, context);
    if (l.qk_norm() == QkNorm::kNone) return;
    const View<const T, 3> raw = saved.raw;
    const View<T, 4> q = run.normed_rows(dprojected, 0), k = run.normed_rows(dprojected, 1);
    norm_backward<T>(run.normed_rows(raw, 0), q, run.norm_of(l.values_.q_norm), q, l.gradients_.q_norm.data(), nullptr,
        saved.dq_norm, context);
    norm_backward<T>(run.normed_rows(raw, 1), k, run.norm_of(l.values_.k_norm), k, l.gradients_.k_norm.data(), nullptr,
        saved.dk_norm, context);
  }
};

}  // namespace qkv::inline v0::nn
