// An attention layer's forward and backward in parts, for a caller whose projections do not come from x [B, T, E], or
// that goes on from what is attended: the toy model (lm/table_projection.h, lm/folded_head.h), whose layers have no
// norms and rotary positions there.
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

struct QKV_API ProjectedHalves {
  /// projected [B, T, P] of x [B, T, E].
  static void project(const AttentionLayer& layer, View<const float, 3> x, View<float, 3> projected, Context& context);
  /// [E, W], null without an output projection.
  static View<const float, 2> output_weight(const AttentionLayer& layer);
  /// y from saved.projected [B, T, P], which the caller filled; saved.x is not used. y null: it ends at saved.attended.
  static void forward(const AttentionLayer& layer, View<float, 3> y, const ForwardOptions& options, Saved& saved);
  /// The gradient of saved.projected, a view of saved [B, T, P]; the output's parameter gradients += . dy null: it
  /// starts from saved.dattended, which the caller filled.
  static View<const float, 3> backward(AttentionLayer& layer, View<const float, 3> dy, Saved& saved, Context& context);
  /// The gradient of project: dx [B, T, E], parameter gradients of q, k, v += .
  static void backward_projection(AttentionLayer& layer, View<const float, 3> x, View<const float, 3> dprojected,
      View<float, 3> dx, Context& context);
};

}  // namespace qkv::inline v0::nn
