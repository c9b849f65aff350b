// Backward attention of a checked call, dense or ragged: every work item in one region.
#pragma once

#include "attention/call/batch.h"

namespace qkv::inline v0 {

/// Results of forward, and the gradient that arrives at out.
struct BackwardInputs {
  AnyView out, lse, dout;  // [B, H, Tq, Dv], [B, H, Tq], [B, H, Tq, Dv]
};

/// Some key ranges of a dense problem, of several calls by ascending ranges (carried_backward.h). dq is complete after
/// the last of them, dk_sums and dv_sums, which hold the keys from `first_key` on, are added to.
struct CarriedRanges {
  Index begin, end, first_key;
  std::byte* numbers;           // [3][B, H, Tq] of sums, delta and lse in two parts: written by the first range
  AnyView vast_high, vast_low;  // [B, H, Tq] of sums: lse in two parts where one is too coarse, else NaN; null: unknown
  std::byte* dq;  // 16-bit types: [B, H, Tq, D] of sums, kept from call to call, never null; others: not read
};

/// In a ragged batch all tensors of tokens are one sequence, [1, H, total, ...]. dk and dv of 16-bit elements may be of
/// sums; dk_sums and dv_sums are not read.
void backward_batch(const Batch& batch, const BackwardInputs& inputs, const Gradients& gradients, Context& context,
    const CarriedRanges* carried = nullptr);

/// The gradients of a dense problem, by lists where they serve; f32 and f64 have their sums in dk and dv. Bit-identical
/// for any number of threads, and for a sequence alone or in a batch.
void backward_dense(const Problem& p, const BackwardInputs& inputs, const Gradients& gradients, Context& context);

/// Scratch of a call that wants every gradient, with dbias if there is a bias.
void plan_backward(const Batch& batch, const Context& context, AttentionPlan& plan);

}  // namespace qkv::inline v0
