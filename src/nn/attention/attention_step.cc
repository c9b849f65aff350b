// One step of an attention layer with a cache: project, append, attend to all keys so far, project. Not: caches (kv_cache.h),
// whole sequences and their gradients (attention_layer.cc).
#include <algorithm>

#include "core/check.h"
#include "nn/rows/check_rows.h"
#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

void AttentionLayer::step(View<const float, 3> x, View<float, 3> y, KVCache& cache, StepMemory& memory, const Mask& mask,
                          Context& context) const {
  const Index batch = x.size(0), length = x.size(1);
  const std::span<const Index> sequences = cache.sequences();
  check<ShapeError>(x.size(2) == config_.embed_dim && batch == static_cast<Index>(sequences.size()) &&
                        y.sizes() == View<float, 3>::Sizes{batch, length, output_dim()},
                    config_.type, "x must be [sequences of the cache, n, ", config_.embed_dim, "] and y its output: got x ", x,
                    ", y ", y, ", ", sequences.size(), " sequences");
  check<ShapeError>(cache.config().num_kv_heads == config_.num_kv_heads && cache.config().head_dim == head_dim(), config_.type,
                    "the cache must have num_kv_heads ", config_.num_kv_heads, " and head_dim ", head_dim(), ": got ",
                    cache.config().num_kv_heads, " and ", cache.config().head_dim);
  check_rows(config_.type, "y", y);
  memory.positions.resize(sequences.size());
  std::ranges::transform(sequences, memory.positions.begin(), [&cache](Index sequence) { return cache.length(sequence); });
  resize(memory.projected, {batch, length, projected_width()});
  resize(memory.attended, {batch, length, config_.width});
  project(x, memory.projected, context, {.offsets = memory.positions});
  const View<const float, 3> projected = memory.projected;
  const auto heads = [&](Index begin, Index count) {  // [B, count, n, D]
    return split_heads(projected.sliced(2, begin, begin + count * head_dim()), count);
  };
  cache.append(heads(config_.width, num_kv_heads()), heads(config_.width + kv_width(), num_kv_heads()));
  const AttentionOptions options{.mask = last_sees_last_ & mask};
  attention_forward(heads(0, num_heads()), cache.key_value(), {.out = split_heads(memory.attended.view<3>(), num_heads())},
                    options, context);
  project_output(memory.attended, y, context);
}

}  // namespace qkv::inline v0::nn
