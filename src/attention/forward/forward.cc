// Forward attention of a dense and of a ragged batch and on a cache: checks.
#include "attention/forward/forward_checks.h"
#include "attention/forward/forward_driver.h"
#include "attention/plan/part_rows.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kForward = "attention_forward";

/// A call on dense tensors or a cache.
void compute(const Problem& p, const Outputs& outputs, const AttentionOptions& options, Context& context) {
  check_asked_for(kForward, p, outputs, options);
  check_outputs_of(kForward, p, outputs, written_results(options.capture, false));
  with_sums(p.q.type, [&]<class Sum>(Sum) {
    CaptureJob<Sum> capture(kForward, p, options.capture, false);
    const StripRows strips = rows_of_forward(p, is_asked_for(outputs.out), is_asked_for(outputs.weights));
    if (!strips.added) return forward_batch<Sum>(Batch(p), outputs, capture.if_wanted(), context);
    const StripCopy q(p.q, strips), out(outputs.out, strips), lse(outputs.lse, strips),
        weights(outputs.weights, strips), lse_low(outputs.lse_low, strips);
    const Problem wide = widened(p, strips, q.wide());
    forward_batch<Sum>(
        Batch(wide), {out.wide(), lse.wide(), weights.wide(), outputs.kind, lse_low.wide()}, nullptr, context);
    for (const StripCopy* each : {&out, &lse, &weights, &lse_low}) each->copy_back();
  });
}

}  // namespace

namespace detail {

void forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyOutputs& outputs,
    const AttentionOptions& options, Context& context) {
  CallMemory memory;
  compute(make_dense_problem(kForward, q, {k, v}, options, context, memory, is_asked_for(outputs.out)), outputs,
      options, context);
}

void forward(const AnyView& q, const KeyValue& kv, const AnyOutputs& outputs, const AttentionOptions& options,
    Context& context) {
  CallMemory memory;
  compute(make_cached_problem(kForward, q, kv, options, context, memory), outputs, options, context);
}

void varlen_forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyOutputs& outputs,
    const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_varlen_forward";
  const RaggedCall r(function, q, k, v, offsets, options, context, is_asked_for(outputs.out));
  const Problem& p = r.all;
  const AnyView& weights = outputs.weights;
  check_asked_for(function, p, outputs, options);
  if (is_asked_for(outputs.out)) check_sizes(function, "out", outputs.out, q.size(0), p.num_heads, p.v_head_dim);
  check<ShapeError>(outputs.lse.is_null() || outputs.lse.has_sizes(q.size(0), p.num_heads), function,
      "lse must be [total_q, H] or null: got ", outputs.lse, " for q ", q);
  if (is_asked_for(weights)) {
    const Index count = ragged_weights_count(offsets, p.num_heads);
    check<ShapeError>(weights.size(0) == count, function, "weights must have H * Tq * Tk numbers for each sequence, ",
        count, " together: got ", weights);
    check<ShapeError>(
        weights.stride(0) == 1 || count <= 1, function, "weights must have stride 1: got ", weights.stride(0));
  }
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}, {"weights", weights}};
  const NamedBox inputs[] = {{"q_offsets", box_of(offsets.q_offsets)}, {"kv_offsets", box_of(offsets.kv_offsets)}};
  check_memory(function, p, options.mask.node(), boxes, inputs);
  with_sums(q.type, [&]<class Sum>(Sum) {
    forward_batch<Sum>(Batch(r),
        {as_one_sequence(outputs.out), as_one_sequence(outputs.lse), weights, outputs.kind, {}}, nullptr, context);
  });
}

}  // namespace detail
}  // namespace qkv::inline v0
