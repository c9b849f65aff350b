// An attention layer's forward and backward in parts, for a caller whose projections do not come from x [B, T, E], or that goes on
// from what is attended: the toy model (lm/table_projection.h, lm/folded_head.h). Not: what users of a layer call.
#pragma once

#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

struct ProjectedHalves {
  /// y from saved.projected [B, T, P], which the caller filled; saved.x is not used. y null: it ends at saved.attended.
  static void forward(const AttentionLayer& layer, View<float, 3> y, const ForwardOptions& options, Saved& saved) {
    layer.forward_projected(y, options, saved);
  }
  /// The gradient of saved.projected, a view of saved [B, T, P]; the output's parameter gradients += . dy null: it starts from
  /// saved.dattended, which the caller filled.
  static View<const float, 3> backward(AttentionLayer& layer, View<const float, 3> dy, Saved& saved, Context& context) {
    return layer.backward_projected(dy, saved, context);
  }
  /// The gradient of project: dx [B, T, E] (null: not wanted), parameter gradients of q, k, v += . UnsupportedError for a layer
  /// with norms or rotary positions.
  static void backward_projection(AttentionLayer& layer, View<const float, 3> x, View<const float, 3> dprojected,
                                  View<float, 3> dx, Context& context) {
    layer.backward_projection(x, dprojected, dx, context);
  }
};

}  // namespace qkv::inline v0::nn
