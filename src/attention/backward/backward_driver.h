// Backward attention of a checked call, dense or ragged: every work item in one region. Not: what one item does
// (backward_job.h).
#pragma once

#include "attention/batch.h"

namespace qkv::inline v0 {

/// What forward returned, and the gradient that arrives at out.
template <class T>
struct BackwardInputs {
  View<const T, 4> out;               // [B, H, Tq, Dv]
  View<const Accumulator<T>, 3> lse;  // [B, H, Tq]
  View<const T, 4> dout;              // [B, H, Tq, Dv]
};

/// In a ragged batch all tensors of tokens are one sequence, [1, H, total, ...].
template <class T>
void backward_batch(const Batch<T>& batch, const BackwardInputs<T>& inputs, const AttentionGradients<T>& gradients,
                    Context& context);

/// Scratch of a call that wants every gradient, with dbias if there is a bias.
template <class T>
void plan_backward(const Batch<T>& batch, const Context& context, AttentionPlan& plan);

}  // namespace qkv::inline v0
