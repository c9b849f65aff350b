// What the heads of AttentionLM compute: read from the activations of one forward, and of one backward for gradients.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/check.h"
#include "lm/activations.h"
#include "nn/attention/projected_halves.h"
#include "nn/products/linear_products.h"

namespace qkv::inline v0::lm {
namespace {

using Heads = View<const float, 4>;  // [B, H, T, D]

Tensor<float> copied(const Heads& x) {
  Tensor<float> made({x.size(0), x.size(1), x.size(2), x.size(3)});
  float* to = made.data();
  for (Index b = 0; b < x.size(0); ++b)
    for (Index h = 0; h < x.size(1); ++h)
      for (Index i = 0; i < x.size(2); ++i) to = std::copy_n(&x(b, h, i, 0), x.size(3), to);
  return made;
}

View<const float, 2> rows_of(const Heads& x, Index b, Index h) {
  return {&x(b, h, 0, 0), {x.size(2), x.size(3)}, {x.stride(2), 1}};
}

/// x_i.y_j [B, H, T, T]; heads of y are shared by those of x.
Tensor<float> products(const Heads& x, const Heads& y, Context& context) {
  const Index length = x.size(2), group = x.size(1) / y.size(1);
  Tensor<float> made({x.size(0), x.size(1), length, length});
  for (Index b = 0; b < x.size(0); ++b) {
    for (Index h = 0; h < x.size(1); ++h) {
      const View<float, 2> to(made.data() + (b * x.size(1) + h) * length * length, {length, length});
      nn::linear_forward(rows_of(x, b, h), nn::LinearWeights<float>{rows_of(y, b, h / group)}, to, context);
    }
  }
  return made;
}

/// The norm of each row [B, H, T] of attended heads times their columns of W_o [E, W].
Tensor<float> norms_of_writes(const Heads& attended, View<const float, 2> output, Context& context) {
  const Index length = attended.size(2), width = attended.size(3);
  Tensor<float> made({attended.size(0), attended.size(1), length}), written({length, output.size(0)});
  const View<float, 3> norms = made;
  for (Index b = 0; b < attended.size(0); ++b) {
    for (Index h = 0; h < attended.size(1); ++h) {
      const nn::LinearWeights<float> weights{output.sliced(1, h * width, (h + 1) * width)};
      nn::linear_forward(rows_of(attended, b, h), weights, written.view<2>(), context);
      for (Index i = 0; i < length; ++i) {
        double squares = 0;
        for (Index e = 0; e < output.size(0); ++e) {
          const auto x = static_cast<double>(written.data()[i * output.size(0) + e]);
          squares += x * x;
        }
        norms(b, h, i) = static_cast<float>(std::sqrt(squares));
      }
    }
  }
  return made;
}

void hide_future(Tensor<float>& x) {
  const Index length = x.size(3);
  for (Index row = 0; row < x.count() / length; ++row)
    std::fill(x.data() + row * length + row % length + 1, x.data() + (row + 1) * length, 0.0F);
}

LayerTrace layer_trace(
    const nn::AttentionLayer& layer, const nn::Saved& saved, bool causal, bool graded, Context& context) {
  const Index heads = layer.num_heads(), kv_heads = layer.num_kv_heads(), depth = layer.head_dim();
  const View<const float, 3> projected = saved.projected;  // [B, T, (H + 2 Hkv) D]
  const auto part = [&](Index first, Index count) {        // -> [B, count, T, D]
    return split_heads(projected.sliced(2, first * depth, (first + count) * depth), count);
  };
  const Heads q = part(0, heads), k = part(heads, kv_heads), v = part(heads + kv_heads, kv_heads);
  LayerTrace made;
  made.q = copied(q);
  made.k = copied(k);
  made.v = copied(v);
  AttentionOptions options{.scale = saved.options.scale};
  if (causal) options.mask = Mask::causal();
  for (const auto& [to, kind] :
      {std::pair{&made.scores, WeightsKind::kScores}, {&made.weights, WeightsKind::kSoftmax}}) {
    *to = Tensor<float>({q.size(0), heads, q.size(2), q.size(2)});
    attention_forward(q, k, {}, {.weights = *to, .kind = kind}, options, context);
  }
  made.writes = norms_of_writes(
      split_heads(View<const float, 3>(saved.attended), heads), nn::ProjectedHalves::output_weight(layer), context);
  if (graded) {
    made.gradients = products(split_heads(View<const float, 3>(saved.dattended), heads), v, context);
    if (causal) hide_future(made.gradients);
  }
  return made;
}

}  // namespace

Trace AttentionLM::trace(View<const Index, 2> ids, const TraceOptions& options, Context& context) const {
  const AttentionLMConfig& config = impl_->config;
  impl_->check_whole("AttentionLM::trace");
  const bool graded = !options.targets.is_null();
  std::optional<AttentionLM> own;  // backward overwrites gradients, and training mode is dropout
  if (graded || impl_->training) own.emplace(clone()).train(false);
  const AttentionLM& model = own ? *own : *this;
  Activations activations;
  model.run(ids, activations, 0, context, options);
  Trace made;
  if (graded) {
    made.loss = model.loss(options.targets, activations, context);
    own->backward(activations, context);
  }
  for (std::size_t i = 0; i < impl_->blocks.size(); ++i) {
    made.layers.push_back(layer_trace(model.impl_->blocks[i].attention, activations.impl_->layers[i].attention,
        options.causal.value_or(config.causal), graded, context));
  }
  made.logits = std::move(activations.impl_->logits);
  return made;
}

std::vector<Tensor<float>> AttentionLM::attention_weights(
    View<const Index, 2> ids, Context& context, const HeadSet& cut) const {
  Trace traced = trace(ids, {.cut = cut}, context);
  std::vector<Tensor<float>> weights;
  for (LayerTrace& layer : traced.layers) weights.push_back(std::move(layer.weights));
  return weights;
}

}  // namespace qkv::inline v0::lm
