// The ways to compute attention, one row each, and what is asked of them: a new way is one row and is held to every
// relation (relations.h).
#pragma once

#include <optional>
#include <vector>

#include "qkv/attention.h"
#include "support/problem.h"

namespace qkv::test {

enum Output : unsigned {
  kOut = 1,
  kLse = 2,
  kWeights = 4,
  kDq = 8,
  kDk = 16,
  kDv = 32,
  kDbias = 64,
  kDsinks = 128,
  kDposition = 256,
  kMore = 512  ///< the first of a form's own
};
inline constexpr std::array kOutputNames = {"out", "lse", "weights", "dq", "dk", "dv", "dbias", "dsinks", "dposition"};
inline constexpr unsigned kForward = kOut | kLse, kShared = kDbias | kDsinks | kDposition,
                          kGradients = kDq | kDk | kDv | kShared, kEverything = kForward | kWeights | kGradients;

template <class T> struct Form {
  const char* name;
  unsigned gives;  ///< outputs that it computes
  unsigned bits;   ///< those with the bits of one call on the whole problem; the others are within their bounds
  /// The case as this form takes it; none: not at all.
  std::optional<AttentionCase> (*of)(AttentionCase);
  /// As attention_forward and attention_backward; a null view is not asked for.
  void (*forward)(const Problem<T>&, const AttentionOutputs<T>&, Context&);
  void (*backward)(const Problem<T>&, const Result<T>&, const AttentionGradients<T>&, Context&) = nullptr;
  AttentionPlan (*plan)(const Problem<T>&, Context&) = nullptr;
  std::vector<AttentionCase> (*own)() = nullptr;  ///< cases of its own instead of those of the list
  /// Outputs of its own, bit kMore << n is names[n]: each [B, ..], or shared by sequences. Those not asked for are
  /// empty.
  std::vector<const char*> more_names{};
  std::vector<Tensor<double>> (*more)(const Problem<T>&, unsigned asked, Context&) = nullptr;
};

/// The case without a cache, which forms bring themselves.
inline std::optional<AttentionCase> any(AttentionCase c) {
  c.cache = CacheKind::kNone;
  return c;
}

/// The problem in rows, in heads, and with keys in chunks.
template <class T> Form<T> in_rows();
template <class T> Form<T> in_heads();
template <class T> Form<T> in_chunks();

/// One call on the whole problem; the options are the problem's.
template <class T> void dense_forward(const Problem<T>& problem, const AttentionOutputs<T>& outputs, Context& context);
template <class T> void dense_backward(
    const Problem<T>& problem, const Result<T>& result, const AttentionGradients<T>& gradients, Context& context);

/// A capture of everything, forward and backward, beside the outputs.
template <class T> Form<T> captured();
/// Forward mode and double backward, along tangents that are functions of the inputs.
template <class T> Form<T> derivatives();

/// Every form that the core has.
template <class T> const std::vector<Form<T>>& forms();

/// Computes the `asked` outputs of a form into result, out and lse where gradients are asked for.
template <class T> void run_form(const Form<T>& form, const Problem<T>& problem, Result<T>& result, unsigned asked,
    Context& context, bool accumulate = false);

/// out, lse, weights, dq, dk, dv, dbias, dsinks, dposition, contiguous, exact; those that the problem has not or that
/// are not asked for are empty.
template <class T> std::vector<Tensor<double>> outputs_of(const Result<T>& result, unsigned asked = kEverything);

}  // namespace qkv::test
