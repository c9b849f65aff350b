// The results of a capture in one case, held against the weights of the reference, forward and backward, on every
// instruction set; and results captured in two ways against each other.
#pragma once

#include <optional>

#include "support/checks/captured.h"
#include "support/checks/magnitude.h"
#include "support/isas.h"

namespace qkv::test {

template <class T> void forward_with(
    const Problem<T>& problem, Result<T>& result, const Capture& what, CaptureResult& found, Context& context) {
  AttentionOptions options = problem.options;
  options.capture = {what, found};
  attention_forward(
      problem.q(), problem.k(), problem.v(), {.out = result.out.view, .lse = result.lse}, options, context);
}

template <class T> void backward_with(
    const Problem<T>& problem, Result<T>& result, const Capture& what, CaptureResult& found, Context& context) {
  AttentionOptions options = problem.options;
  options.capture = {what, found};
  AttentionGradients<T> wanted;
  wanted.dq = result.gradients.views[0], wanted.dk = result.gradients.views[1], wanted.dv = result.gradients.views[2];
  if (!problem.bias.is_null()) wanted.dbias = result.dbias;
  wanted.dlse = problem.dlse;
  attention_backward(
      problem.q(), problem.k(), problem.v(), result.out.view, result.lse, problem.dout.view, wanted, options, context);
}

/// The same with every row, to find the largest.
template <class T> Capture with_all_rows(const Problem<T>& problem, const Capture& what) {
  Capture all{.heads = what.heads, .of = what.of};
  for (Index i = 0; i < problem.c.q_len; ++i) all.rows.push_back(i);
  return all;
}

/// Weights times dropout's factors.
template <class C> Tensor<C> applied(const Tensor<C>& weights, const reference::Factor& factor) {
  Tensor<C> result = weights.clone();
  const View<C, 4> w = result;
  for_each_index(
      w.sizes(), [&](Index b, Index h, Index i, Index j) { w(b, h, i, j) *= static_cast<C>(factor(b, h, i, j)); });
  return result;
}

/// w dw, with the terms of dout . v made positive where `absolute`; rows that are `empty` and pairs that are not kept
/// hold 0.
template <class C, class Given, class T> Tensor<C> times_gradient(
    const Tensor<C>& weights, const ReferenceInput<Given>& input, const Problem<T>& problem, bool absolute) {
  Tensor<C> result = weights.clone();
  const View<C, 4> w = result;
  const View<const Given, 4> v = input.v, dout = input.dout;
  for_each_index(w.sizes(), [&](Index b, Index h, Index i, Index j) {
    C dw = 0;
    for (Index d = 0; d < v.size(3); ++d) {
      const C term = static_cast<C>(dout(b, h, i, d)) * static_cast<C>(v(b, h / (w.size(1) / v.size(1)), j, d));
      dw += absolute ? std::abs(term) : term;
    }
    if (input.options.factor) dw *= static_cast<C>(input.options.factor(b, h, i, j));
    w(b, h, i, j) = problem.kept(b, h, i, j) ? w(b, h, i, j) * dw : 0;
  });
  return result;
}

/// The key that a capture calls the largest is one, as far as bounds tell.
template <class T, class Kept> void expect_largest_key(const Expected<Accumulator<T>>& weights,
    const CaptureResult& found, const Capture& what, Index num_heads, const Kept& kept) {
  const std::vector<Index> heads = heads_of(what, num_heads);
  const Tensor<Index>& keys = found.statistics.max_key;
  const View<const Wider<T>, 4> exact = weights.exact;
  for_each_index({keys.size(0), keys.size(1), keys.size(2)}, [&](Index b, Index n, Index i) {
    const Index key = keys.view<3>()(b, n, i), h = heads[static_cast<std::size_t>(n)],
                row = ((b * num_heads + h) * keys.size(2) + i) * exact.size(3);
    Index largest = -1;
    bool nan = false;
    for (Index j = 0; j < exact.size(3); ++j) {
      nan |= std::isnan(exact(b, h, i, j));
      if (kept(b, h, i, j) && (largest < 0 || exact(b, h, i, j) > exact(b, h, i, largest))) largest = j;
    }
    if (nan || largest < 0) {
      ASSERT_EQ(key, -1);
      return;
    }
    ASSERT_GE(key, 0);
    const auto bound = [&](Index j) { return weights.bounds[static_cast<std::size_t>(row + j)]; };
    ASSERT_GE(static_cast<double>(exact(b, h, i, key)),
        static_cast<double>(exact(b, h, i, largest)) - bound(key) - bound(largest));
  });
}

template <class T> void check_capture_forward(AttentionCase each, Worst& worst) {
  using Sum = Accumulator<T>;
  each.cache = CacheKind::kNone;  // captures do not work on a cache
  SCOPED_TRACE(each.name());
  const Problem<T> problem(each);
  const auto input = problem.template reference_input<Wider<T>>();
  const auto same = problem.template reference_input<Sum>();
  const reference::Forward<Wider<T>> exact = input.forward();
  const reference::Forward<Sum> naive = same.forward();
  const Magnitude a = magnitude_of(input, exact, false);
  Capture what = capture_of(each);
  const Expected<Sum> weights(exact.weights.clone(), naive.weights, a.weights, 2);
  const ExpectedCapture<T> expected(exact.weights, naive.weights, a.weights, what, kNumSums + kNumStatistics, 2);
  const reference::Factor& factor = input.options.factor;
  std::optional<ExpectedCapture<T>> expected_applied;
  if (problem.options.dropout.active()) {
    expected_applied.emplace(
        applied(exact.weights, factor), applied(naive.weights, factor), applied(a.weights, factor), what, kNumSums, 2);
  }
  for_each_isa(1, [&](Context& context) {
    const std::string name = each.name() + " " + std::string(isa_name(context.isa()));
    Result<T> alone(problem), watched(problem);
    alone.run_forward(problem, context);
    CaptureResult found, all;
    what.of = CaptureOf::kWeights;
    forward_with(problem, watched, what, found, context);
    EXPECT_TRUE(same_bits(alone.lse, watched.lse)) << "lse beside a capture";
    EXPECT_TRUE(same_bits(copy_as<Sum>(alone.out.view), copy_as<Sum>(watched.out.view))) << "out beside a capture";
    EXPECT_TRUE(watched.sentinels_intact());
    EXPECT_TRUE(expected.holds(found, name, worst));
    const bool fills = each.empty_row != EmptyRow::kZero;
    const auto kept = [&](Index b, Index h, Index i, Index j) {
      return problem.kept(b, h, i, j) || (fills && View<const Wider<T>, 3>(exact.lse)(b, h, i) == -HUGE_VAL);
    };
    expect_largest_key<T>(weights, found, what, each.num_heads, kept);
    forward_with(problem, watched, with_all_rows(problem, what), all, context);
    expect_largest(found, all, what, each.num_heads, kept);
    if (!expected_applied) return;
    what.of = CaptureOf::kApplied;
    forward_with(problem, watched, what, found, context);
    EXPECT_TRUE(expected_applied->holds(found, name + " applied", worst));
  });
}

template <class T> void check_capture_backward(AttentionCase each, Worst& worst) {
  using Sum = Accumulator<T>;
  each.cache = CacheKind::kNone;  // captures do not work on a cache
  SCOPED_TRACE(each.name());
  const Problem<T> problem(each);
  const auto input = problem.template reference_input<Wider<T>>();
  const auto same = problem.template reference_input<Sum>();
  const reference::Forward<Wider<T>> forward = input.forward();
  const Tensor<Wider<T>> exact = times_gradient(forward.weights, input, problem, false);
  const Tensor<Sum> naive = times_gradient(same.forward().weights, same, problem, false);
  const Tensor<double> a = times_gradient(magnitude_of(input, forward, false).weights, input, problem, true);
  Capture what = capture_of(each);
  what.statistics = false;
  what.of = CaptureOf::kGradient;
  const ExpectedCapture<T> expected(exact, naive, a, what, kNumSums, 3);
  for_each_isa(1, [&](Context& context) {
    const std::string name = each.name() + " " + std::string(isa_name(context.isa()));
    Result<T> alone(problem), watched(problem);
    for (Result<T>* result : {&alone, &watched}) result->run_forward(problem, context);
    alone.run_backward(problem, context);
    CaptureResult found, all;
    backward_with(problem, watched, what, found, context);
    for (std::size_t n = 0; n < 3; ++n) {
      EXPECT_TRUE(same_bits(copy_as<Sum>(alone.gradients.views[n]), copy_as<Sum>(watched.gradients.views[n]))) << n;
    }
    EXPECT_TRUE(expected.holds(found, name, worst));
    backward_with(problem, watched, with_all_rows(problem, what), all, context);
    const auto kept = [&](Index b, Index h, Index i, Index j) { return problem.kept(b, h, i, j); };
    expect_largest(found, all, what, each.num_heads, kept);
  });
}

}  // namespace qkv::test
