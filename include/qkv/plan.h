// Plan: a forward call that is checked once and run many times. For small calls on tensors that stay where they are:
// checks and decisions are a third of a call on one head of 8 tokens, and nothing that can be measured of a large one.
#pragma once

#include <memory>

#include "qkv/attention.h"

namespace qkv::inline v0 {

namespace detail {
class QKV_API PlannedForward {
 public:
  PlannedForward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyOutputs& outputs,
      const AttentionOptions& options, Context& context);
  ~PlannedForward();
  PlannedForward(PlannedForward&&) noexcept;
  PlannedForward& operator=(PlannedForward&&) noexcept;
  void forward();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
}  // namespace detail

/// attention_forward with the arguments that plan_attention was passed. T: float, double, BFloat16 or Float16.
template <class T> class Plan {
 public:
  /// As plan_attention, which takes tensors too.
  Plan(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
      const AttentionOutputs<T>& outputs, const AttentionOptions& options, Context& context)
      : planned_(q, k, v, detail::any(outputs), options, context) {}

  /// Computes the outputs from the numbers that lie in q, k, v and what the options borrow now: the bits of
  /// attention_forward. Throws nothing of its own but what a callback of a mask or a score throws, and std::bad_alloc.
  /// One call at a time per plan; different plans may run at once.
  void forward() { planned_.forward(); }

 private:
  detail::PlannedForward planned_;
};

/// Checks a call of attention_forward, with its errors, and computes nothing. Tensors, what the options borrow and the
/// context must outlive the plan and stay where they are; their numbers may change.
template <Operand Q> Plan<ElementOf<Q>> plan_attention(const Q& q, In<Q, 4> k, In<Q, 4> v,
    const AttentionOutputs<ElementOf<Q>>& outputs, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  return {q, k, v, outputs, options, context};
}

}  // namespace qkv::inline v0
