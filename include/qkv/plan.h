// Plan: a forward call that is checked once and run many times. For small calls on tensors that stay where they are: checks and
// decisions are a third of a call on one head of 8 tokens, and nothing that can be measured of a large one.
#pragma once

#include <memory>

#include "qkv/attention.h"

namespace qkv::inline v0 {

/// attention_forward with the arguments that plan_attention was passed. T: float, double, BFloat16 or Float16.
template <class T>
class QKV_API Plan {
 public:
  /// As plan_attention, which takes tensors too.
  Plan(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v, const AttentionOutputs<T>& outputs,
       const AttentionOptions& options, Context& context);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  /// Computes the outputs from the numbers that lie in q, k, v and what the options borrow now: the bits of attention_forward.
  /// Throws nothing of its own but what a callback of a mask or a score throws, and std::bad_alloc. One call at a time per
  /// plan; different plans may run at once.
  void forward();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Checks a call of attention_forward, with its errors, and computes nothing. Tensors, what the options borrow and the context
/// must outlive the plan and stay where they are; their numbers may change.
QKV_API Plan<float> plan_attention(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
                                   const AttentionOutputs<float>& outputs, const AttentionOptions& options = {},
                                   Context& context = Context::default_context());
QKV_API Plan<double> plan_attention(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
                                    const AttentionOutputs<double>& outputs, const AttentionOptions& options = {},
                                    Context& context = Context::default_context());
QKV_API Plan<BFloat16> plan_attention(View<const BFloat16, 4> q, View<const BFloat16, 4> k, View<const BFloat16, 4> v,
                                      const AttentionOutputs<BFloat16>& outputs, const AttentionOptions& options = {},
                                      Context& context = Context::default_context());
QKV_API Plan<Float16> plan_attention(View<const Float16, 4> q, View<const Float16, 4> k, View<const Float16, 4> v,
                                     const AttentionOutputs<Float16>& outputs, const AttentionOptions& options = {},
                                     Context& context = Context::default_context());

}  // namespace qkv::inline v0
