// One step of an attention layer with a cache: project, append, attend to all keys so far, project; and the two projections
// alone. Not: caches (kv_cache.h), whole sequences (attention_layer.cc).
#include <algorithm>

#include "core/check.h"
#include "nn/parameters/tensor_use.h"
#include "nn/products/linear_products.h"
#include "nn/rows/check_rows.h"
#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

template <class T>
void AttentionLayer::project_of(View<const T, 3> x, View<T, 3> projected, Context& context,
                                const RotaryPositions& positions) const {
  check<ShapeError>(x.size(2) == config_.embed_dim && projected.size(0) == x.size(0) && projected.size(1) == x.size(1) &&
                        projected.size(2) == projected_width(),
                    config_.type, "x must be [B, T, ", config_.embed_dim, "] and projected [B, T, ", projected_width(),
                    "]: got ", x, " and ", projected);
  check_rows(config_.type, "x", x);
  check_rows(config_.type, "projected", projected);
  linear_forward(x, weights_of<T>(in_weight_, in_bias_), projected, context);
  position(projected, positions, context);
}

template <class T>
void AttentionLayer::project_output_of(View<const T, 3> attended, View<T, 3> y, Context& context) const {
  check<ShapeError>(attended.size(2) == config_.width && y.size(0) == attended.size(0) && y.size(1) == attended.size(1) &&
                        y.size(2) == output_dim(),
                    config_.type, "attended must be [B, T, ", config_.width, "] and y [B, T, ", output_dim(), "]: got ",
                    attended, " and ", y);
  check_rows(config_.type, "attended", attended);
  check_rows(config_.type, "y", y);
  output_of(attended, y, context);
}

template <class T>
void AttentionLayer::step_of(View<const T, 3> x, View<T, 3> y, KVCache& cache, StepMemoryOf<T>& memory, const Mask& mask,
                             Context& context) const {
  const Index batch = x.size(0), length = x.size(1);
  const std::span<const Index> sequences = cache.sequences();
  check<ShapeError>(x.size(2) == config_.embed_dim && batch == static_cast<Index>(sequences.size()) &&
                        y.sizes() == typename View<T, 3>::Sizes{batch, length, output_dim()},
                    config_.type, "x must be [sequences of the cache, n, ", config_.embed_dim, "] and y its output: got x ", x,
                    ", y ", y, ", ", sequences.size(), " sequences");
  check<ShapeError>(cache.config().num_kv_heads == config_.num_kv_heads && cache.config().head_dim == head_dim(), config_.type,
                    "the cache must have num_kv_heads ", config_.num_kv_heads, " and head_dim ", head_dim(), ": got ",
                    cache.config().num_kv_heads, " and ", cache.config().head_dim);
  check_rows(config_.type, "y", y);
  memory.positions.resize(sequences.size());
  std::ranges::transform(sequences, memory.positions.begin(), [&cache](Index sequence) { return cache.length(sequence); });
  resize(memory.projected, std::array{batch, length, projected_width()});
  resize(memory.attended, std::array{batch, length, config_.width});
  project_of<T>(x, memory.projected, context, {.offsets = memory.positions});
  const View<const T, 3> projected = memory.projected;
  const auto heads = [&](Index begin, Index count) {  // [B, count, n, D]
    return split_heads(projected.sliced(2, begin, begin + count * head_dim()), count);
  };
  cache.append(heads(config_.width, num_kv_heads()), heads(config_.width + kv_width(), num_kv_heads()));
  const AttentionOptions options{.mask = last_sees_last_ & mask};
  const View<T, 3> attended = memory.attended;
  attention_forward(heads(0, num_heads()), cache.key_value(), {.out = split_heads(attended, num_heads())}, options, context);
  project_output_of<T>(attended, y, context);
}

#define QKV_DEFINE(T)                                                                                                        \
  void AttentionLayer::project(View<const T, 3> x, View<T, 3> projected, Context& context, const RotaryPositions& positions) \
      const {                                                                                                                \
    project_of(x, projected, context, positions);                                                                            \
  }                                                                                                                          \
  void AttentionLayer::project_output(View<const T, 3> attended, View<T, 3> y, Context& context) const {                     \
    project_output_of(attended, y, context);                                                                                 \
  }                                                                                                                          \
  void AttentionLayer::step(View<const T, 3> x, View<T, 3> y, KVCache& cache, StepMemoryOf<T>& memory, const Mask& mask,     \
                            Context& context) const {                                                                        \
    step_of(x, y, cache, memory, mask, context);                                                                             \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::nn
