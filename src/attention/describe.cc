// attention_plan: what a call would do, without doing it.
#include "attention/backward/backward_driver.h"
#include "attention/forward/forward_driver.h"
#include "attention/plan/listed.h"
#include "core/cpu.h"

namespace qkv::inline v0 {
namespace {

/// Says where the call would run, and why not elsewhere.
void add_machine(const Context& context, AttentionPlan& plan) {
  plan.isa = context.isa();
  plan.threads = context.threads();
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (candidate.isa == plan.isa) continue;
    std::string reason = candidate.obstacle;
    if (reason.empty()) {
      reason = candidate.isa < plan.isa ? "slower than " + std::string(isa_name(plan.isa)) : "the context was made without it";
    }
    plan.skipped.push_back(std::string(isa_name(candidate.isa)) + ": " + reason);
  }
}

/// Names the algorithm of calls that read listed keys alone; their flops are those of the tiles' kept pairs.
void name_lists(AttentionPlan& plan) {
  plan.skipped.push_back(plan.algorithm + ": reads all keys; the lists hold few of them");
  plan.algorithm = "lists";
}

/// The part of a plan that all forms of a call share.
template <class T>
AttentionPlan plan_batch(const Batch<T>& batch, const AttentionOptions& options, const Context& context) {
  AttentionPlan plan;
  plan_forward(batch, plan);
  add_machine(context, plan);
  const Problem<T>& longest = batch.longest();
  plan.position_bias_bytes = PositionVectors<Accumulator<T>>::bytes(options.position_bias, longest.queries, longest.kv_len);
  plan.mask_bytes = DenseSummaries::bytes(options.mask.node());
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                      const AttentionOptions& options, Context& context) {
  CallMemory memory;
  const Problem<T> p = make_problem("attention_plan", q, k, v, options, context, Use::kOutput, &memory);
  const Batch<T> batch(p);
  AttentionPlan plan = plan_batch(batch, options, context);
  plan_backward(batch, context, plan);
  if (Listed<T>(p).applies()) name_lists(plan);
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 4>& q, const KeyValue& kv, const AttentionOptions& options, Context& context) {
  CallMemory memory;
  const Problem<T> p = make_cached_problem("attention_plan", q, kv, options, context, memory);
  AttentionPlan plan = plan_batch(Batch<T>(p), options, context);
  if (Listed<T>(p).applies()) name_lists(plan);
  plan.backward_flops = 0;
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v,
                      const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  const RaggedProblem<T> r("attention_varlen_plan", q, k, v, offsets, options, context);
  const Batch<T> batch(r);
  AttentionPlan plan = plan_batch(batch, options, context);
  plan_backward(batch, context, plan);
  return plan;
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                       \
  AttentionPlan attention_plan(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOptions& options, \
                               Context& context) {                                                                          \
    return plan_of<T>(q, k, v, options, context);                                                                           \
  }                                                                                                                         \
  AttentionPlan attention_plan(View<const T, 4> q, const KeyValue& kv, const AttentionOptions& options, Context& context) { \
    return plan_of<T>(q, kv, options, context);                                                                             \
  }                                                                                                                         \
  AttentionPlan attention_varlen_plan(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v,                           \
                                      const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {    \
    return plan_of<T>(q, k, v, offsets, options, context);                                                                  \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
