// Forward attention of a dense and of a ragged batch and on a cache: checks, once for a plan.
#include <limits>

#include "attention/forward/forward_checks.h"
#include "attention/forward/forward_driver.h"
#include "attention/plan/placed_rows.h"
#include "core/overlap.h"
#include "qkv/kv_cache.h"
#include "qkv/plan.h"

namespace qkv::inline v0 {
namespace {

/// A call on dense tensors: checked when it is made, and then computed any number of times.
template <class T>
class ForwardCall {
 public:
  /// Refers to outputs, options and context.
  [[gnu::noinline]] ForwardCall(const char* function, const View<const T, 4>& q, const View<const T, 4>& k,
                                const View<const T, 4>& v, const AttentionOutputs<T>& outputs, const AttentionOptions& options,
                                Context& context)
      : outputs_(outputs),
        options_(options),
        context_(context),
        p_(make_problem(function, q, k, v, options, context, is_asked_for(outputs.out) ? Use::kOutput : Use::kWeights,
                        &memory_)) {
    check_asked_for(function, p_, outputs, options);
    check_sizes_of(function, p_, outputs);
    if (is_asked_for(outputs.weights)) {
      check_sizes(function, "weights", outputs.weights, p_.batch, p_.num_heads, p_.q_len, p_.kv_len);
    }
    const NamedBox boxes[] = {
        {"out", outputs.out}, {"lse", outputs.lse}, {"lse_low", outputs.lse_low}, {"weights", outputs.weights}};
    const NamedBox inputs[] = {
        {"q", q}, {"k", k}, {"v", v}, {"bias", p_.bias}, {"sinks", p_.sinks}, {"position_bias", position_table(p_)}};
    check_outputs(function, boxes, inputs);
  }
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;

  [[gnu::noinline]] void compute(const char* function) {
    CaptureJob<T> capture(function, p_, options_.capture, context_, false);
    const StripRows rows = rows_of_forward(p_, is_asked_for(outputs_.out), is_asked_for(outputs_.weights));
    if (rows.added) return compute_with(rows);
    forward_batch<T>(Batch<T>(p_), outputs_, capture.if_wanted(), context_);
  }
  /// The same from what the tensors and the options hold now.
  void compute_again(const char* function) {
    p_.prepare(context_, memory_);
    compute(function);
  }

 private:
  /// By a call on whole strips.
  [[gnu::noinline]] void compute_with(const StripRows& rows) const {
    StripCopy q(row_bytes(p_.q), rows), out(row_bytes(outputs_.out), rows), lse(row_bytes(outputs_.lse), rows),
        weights(row_bytes(outputs_.weights), rows), lse_low(row_bytes(outputs_.lse_low), rows);
    const AttentionOutputs<T> wide{out.view(outputs_.out), lse.view(outputs_.lse), weights.view(outputs_.weights),
                                   outputs_.kind, lse_low.view(outputs_.lse_low)};
    attention_forward(q.view(p_.q), p_.k, p_.v, wide, options_of(options_, p_, rows), context_);
    out.copy_to(row_bytes(outputs_.out));
    lse.copy_to(row_bytes(outputs_.lse));
    weights.copy_to(row_bytes(outputs_.weights));
    lse_low.copy_to(row_bytes(outputs_.lse_low));
  }

  const AttentionOutputs<T>& outputs_;
  const AttentionOptions& options_;
  Context& context_;
  CallMemory memory_;
  Problem<T> p_;
};

template <class T>
void forward(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v, const RaggedOutputs<T>& outputs,
             const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_varlen_forward";
  const Use use = is_asked_for(outputs.out) ? Use::kMaskLater : Use::kWeightsMaskLater;
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context, use);
  const Problem<T>& p = r.shared;
  const View<Accumulator<T>, 1>& weights = outputs.weights;
  check_asked_for(function, p, outputs, options);
  if (is_asked_for(outputs.out)) check_tokens(function, "out", outputs.out, q.size(0), p.num_heads, p.v_head_dim);
  check<ShapeError>(outputs.lse.is_null() || outputs.lse.sizes() == typename View<T, 2>::Sizes{q.size(0), p.num_heads},
                    function, "lse must be [total_q, H] or null: got ", outputs.lse, " for q ", q);
  if (is_asked_for(weights)) {
    const Index count = ragged_weights_count(offsets, p.num_heads);
    check<ShapeError>(weights.size(0) == count, function, "weights must have H * Tq * Tk numbers for each sequence, ", count,
                      " together: got ", weights);
    check<ShapeError>(weights.stride(0) == 1 || count <= 1, function, "weights must have stride 1: got ", weights.stride(0));
  }
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}, {"weights", weights}};
  const NamedBox inputs[] = {{"q", q},         {"k", k},           {"v", v},
                             {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, boxes, inputs);
  const View<Accumulator<T>, 4> weights_row(weights.data(), {1, 1, 1, weights.size(0)});
  forward_batch<T>(Batch<T>(r), {one_sequence(outputs.out), one_sequence(outputs.lse), weights_row, outputs.kind}, nullptr,
                   context);
}

template <class T>
void forward(const View<const T, 4>& q, const KeyValue& kv, const AttentionOutputs<T>& outputs, const AttentionOptions& options,
             Context& context) {
  constexpr const char* function = "attention_forward";
  CallMemory memory;
  const Problem<T> p = make_cached_problem(function, q, kv, options, context, memory);
  check<UnsupportedError>(!is_asked_for(outputs.weights), function, "weights are not computed on a cache");
  check<UnsupportedError>(!is_asked_for(outputs.lse_low), function, "lse_low is not computed on a cache");
  check_asked_for(function, p, outputs, options);
  check_sizes_of(function, p, outputs);
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}};
  const NamedBox inputs[] = {{"q", q}, {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, boxes, inputs);
  forward_batch<T>(Batch<T>(p), outputs, nullptr, context);
}

}  // namespace

template <class T>
struct Plan<T>::Impl {
  AttentionOutputs<T> outputs;
  AttentionOptions options;
  std::optional<ForwardCall<T>> call;  // refers to both
};

template <class T>
Plan<T>::Plan(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
              const AttentionOutputs<T>& outputs, const AttentionOptions& options, Context& context)
    : impl_(new Impl{outputs, options, {}}) {
  impl_->call.emplace("plan_attention", q, k, v, impl_->outputs, impl_->options, context);
}
template <class T>
Plan<T>::~Plan() = default;
template <class T>
Plan<T>::Plan(Plan&&) noexcept = default;
template <class T>
Plan<T>& Plan<T>::operator=(Plan&&) noexcept = default;
template <class T>
void Plan<T>::forward() {
  impl_->call->compute_again("Plan::forward");
}

#define QKV_DEFINE(T)                                                                                                        \
  void attention_forward(View<const T, 4> q, const KeyValue& kv, const AttentionOutputs<T>& outputs,                         \
                         const AttentionOptions& options, Context& context) {                                                \
    forward<T>(q, kv, outputs, options, context);                                                                            \
  }                                                                                                                          \
  void attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOutputs<T>& outputs,     \
                         const AttentionOptions& options, Context& context) {                                                \
    ForwardCall<T>("attention_forward", q, k, v, outputs, options, context).compute("attention_forward");                    \
  }                                                                                                                          \
  template class Plan<T>;                                                                                                    \
  Plan<T> plan_attention(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOutputs<T>& outputs,     \
                         const AttentionOptions& options, Context& context) {                                                \
    return {q, k, v, outputs, options, context};                                                                             \
  }                                                                                                                          \
  void attention_varlen_forward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, const RaggedOutputs<T>& outputs, \
                                const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {           \
    forward<T>(q, k, v, outputs, offsets, options, context);                                                                 \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
