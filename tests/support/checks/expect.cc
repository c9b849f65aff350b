#include "support/checks/expect.h"

#include <utility>

#include "support/checks/magnitude.h"

namespace qkv::test {

namespace {

/// How often a term of each result has been rounded to T before it was added. The gradients read out, which is rounded;
/// a kernel on bf16 products rounds p (and the sum that divides it is of the rounded ones) and dS as well.
template <class T> struct Roundings {
  static constexpr double kOut = std::is_same_v<T, BFloat16> ? 2 : 0;
  static constexpr double kDv = std::is_same_v<T, BFloat16> ? 1 : 0;
  static constexpr double kDqDk = std::is_same_v<T, BFloat16> ? 2 : 1;
  static constexpr double kDbias = 1;
};

}  // namespace

template <class T> Expectation<T>::Expectation(const Problem<T>& problem, bool gradients) {
  const ReferenceInput<C> wide = problem.template reference_input<C>();
  const ReferenceInput<Sum> same = problem.template reference_input<Sum>();
  const reference::Forward<C> exact = wide.forward();
  const reference::Forward<Sum> naive = same.forward();
  const Magnitude a = magnitude_of(wide, exact, gradients);
  outputs_.emplace(Outputs{.out = {exact.out.clone(), naive.out, a.out, 2, kUnit * Roundings<T>::kOut},
      .lse = {exact.lse.clone(), naive.lse, a.lse, 2},
      .weights = {exact.weights.clone(), naive.weights, a.weights, 2}});
  if (!gradients) return;
  reference::Backward<C> truth = wide.backward(exact);
  const reference::Backward<Sum> rough = same.backward(naive);
  const auto of_bias = [&](const auto& full) { return reference::reduce_to_bias(full, bias_sizes(problem)); };
  constexpr double kDqDk = kUnit * Roundings<T>::kDqDk, kDbias = kUnit * Roundings<T>::kDbias;
  gradients_.emplace(Gradients{.dq = {std::move(truth.dq), rough.dq, a.dq, 3, kDqDk},
      .dk = {std::move(truth.dk), rough.dk, a.dk, 3, kDqDk},
      .dv = {std::move(truth.dv), rough.dv, a.dv, 3, kUnit * Roundings<T>::kDv},
      .dbias = {of_bias(truth.dbias), of_bias(rough.dbias), of_bias(a.dbias), 3, kDbias},
      .dsinks = {std::move(truth.dsinks), rough.dsinks, a.dsinks, 3, kDbias},
      .dposition = {std::move(truth.dposition_table), rough.dposition_table, a.dposition, 3, kDbias}});
}

template <class T> Expectation<T>::~Expectation() = default;

template <class T> testing::AssertionResult Expectation<T>::holds_forward(
    const Result<T>& result, const std::string& name, Worst& worst) const {
  if (auto ok = within(outputs_->out, copy_as<T>(result.out.view), "out", name, worst); !ok) return ok;
  return within(outputs_->lse, result.lse, "lse", name, worst);
}

template <class T> testing::AssertionResult Expectation<T>::holds_weights(
    const Result<T>& result, const std::string& name, Worst& worst) const {
  return within(outputs_->weights, result.weights, "weights", name, worst);
}

template <class T> testing::AssertionResult Expectation<T>::holds_backward(
    const Result<T>& result, const std::string& name, Worst& worst) const {
  const auto& [dq, dk, dv] = result.gradients.views;
  const Gradients& expected = gradients_.value();
  if (auto ok = within(expected.dq, copy_as<T>(dq), "dq", name, worst); !ok) return ok;
  if (auto ok = within(expected.dk, copy_as<T>(dk), "dk", name, worst); !ok) return ok;
  if (auto ok = within(expected.dv, copy_as<T>(dv), "dv", name, worst); !ok) return ok;
  if (auto ok = within(expected.dsinks, result.dsinks, "dsinks", name, worst); !ok) return ok;
  if (auto ok = within(expected.dposition, result.dposition, "dposition", name, worst); !ok) return ok;
  return within(expected.dbias, result.dbias, "dbias", name, worst);
}

template <class T> typename View<Accumulator<T>, 4>::Sizes Expectation<T>::bias_sizes(const Problem<T>& problem) {
  return problem.bias.is_null() ? typename View<Sum, 4>::Sizes{1, 1, 1, 1} : problem.bias.sizes();
}

#define QKV_TEST_EXPECTATION(T) template class Expectation<T>;
QKV_TEST_TYPES(QKV_TEST_EXPECTATION)

}  // namespace qkv::test
