// Backward attention of a checked call, dense or ragged: every work item in one region.
#pragma once

#include "attention/call/batch.h"
#include "attention/plan/listed.h"

namespace qkv::inline v0 {

/// What forward returned, and the gradient that arrives at out.
template <class T>
struct BackwardInputs {
  View<const T, 4> out;               // [B, H, Tq, Dv]
  View<const Accumulator<T>, 3> lse;  // [B, H, Tq]
  View<const T, 4> dout;              // [B, H, Tq, Dv]
};

/// Some key ranges of a dense problem, of several calls by ascending ranges (carried_backward.h). dq is complete after the last of
/// them, dk_sums and dv_sums are added to.
template <class T>
struct CarriedRanges {
  Index begin, end;
  Accumulator<T>*delta, *lse2_high, *lse2_low;  // [B, H, Tq] each: written by the first range
  Accumulator<T>* dq;  // 16-bit types: [B, H, Tq, D], kept from call to call, never null; others: not read
};

/// In a ragged batch all tensors of tokens are one sequence, [1, H, total, ...].
template <class T>
void backward_batch(const Batch<T>& batch, const BackwardInputs<T>& inputs, const AttentionGradients<T>& gradients,
                    Context& context, const CarriedRanges<T>* carried = nullptr);

/// The gradients of a problem with listed.applies_backward(). Bit-identical for any number of threads, and for a sequence alone or in
/// a batch.
template <class T>
void backward_listed(const Problem<T>& p, const Listed<T>& listed, const BackwardInputs<T>& inputs,
                     const AttentionGradients<T>& gradients, Context& context);

/// Scratch of a call that wants every gradient, with dbias if there is a bias.
template <class T>
void plan_backward(const Batch<T>& batch, const Context& context, AttentionPlan& plan);

}  // namespace qkv::inline v0
