// Forward attention of a checked call, dense or ragged, on tensors or on a cache: every work item, tiled or decode, in one
// region. Not: what one item does (forward_job.h, decode_job.h).
#pragma once

#include "attention/call/batch.h"
#include "attention/capture/capture.h"

namespace qkv::inline v0 {

/// In a ragged batch the tensors of all tokens are one sequence, [1, H, total, ...], and weights are [1, 1, 1, count]:
/// [H, Tq, Tk] of each sequence, one after the other.
/// `capture`: null if nothing is captured.
template <class T>
void forward_batch(const Batch<T>& batch, const AttentionOutputs<T>& outputs, CaptureJob<T>* capture, Context& context);

/// Algorithm, tiles, work items and scratch of a call that wants out and lse.
template <class T>
void plan_forward(const Batch<T>& batch, AttentionPlan& plan);

}  // namespace qkv::inline v0
