#include "support/checks/expect.h"

#include <utility>

#include "support/checks/magnitude.h"

namespace qkv::test {

namespace {

/// How often a term of each result has been rounded to T before it was added. The gradients read out, which is rounded; a
/// kernel on bf16 products rounds p (and the sum that divides it is of the rounded ones) and dS as well.
template <class T>
struct Roundings {
  static constexpr double kOut = std::is_same_v<T, BFloat16> ? 2 : 0;
  static constexpr double kDv = std::is_same_v<T, BFloat16> ? 1 : 0;
  static constexpr double kDqDk = std::is_same_v<T, BFloat16> ? 2 : 1;
  static constexpr double kDbias = 1;
};

}  // namespace

template <class T>
Expectation<T>::Expectation(const Problem<T>& problem) : Expectation(problem, problem.template reference_input<Wider<T>>()) {}

template <class T>
Expectation<T>::~Expectation() = default;

template <class T>
testing::AssertionResult Expectation<T>::holds_forward(const Result<T>& result, const std::string& name, Worst& worst) const {
  if (auto ok = within(out_, copy_as<T>(result.out.view), "out", name, worst); !ok) return ok;
  return within(lse_, result.lse, "lse", name, worst);
}

template <class T>
testing::AssertionResult Expectation<T>::holds_weights(const Result<T>& result, const std::string& name, Worst& worst) const {
  return within(weights_, result.weights, "weights", name, worst);
}

template <class T>
testing::AssertionResult Expectation<T>::holds_backward(const Result<T>& result, const std::string& name, Worst& worst) const {
  const auto& [dq, dk, dv] = result.gradients.views;
  if (auto ok = within(dq_, copy_as<T>(dq), "dq", name, worst); !ok) return ok;
  if (auto ok = within(dk_, copy_as<T>(dk), "dk", name, worst); !ok) return ok;
  if (auto ok = within(dv_, copy_as<T>(dv), "dv", name, worst); !ok) return ok;
  if (auto ok = within(dsinks_, result.dsinks, "dsinks", name, worst); !ok) return ok;
  if (auto ok = within(dposition_, result.dposition, "dposition", name, worst); !ok) return ok;
  return within(dbias_, result.dbias, "dbias", name, worst);
}

template <class T>
Expectation<T>::Expectation(const Problem<T>& problem, const ReferenceInput<C>& input)
    : Expectation(problem, input, problem.template reference_input<Sum>(), input.forward()) {}

template <class T>
Expectation<T>::Expectation(const Problem<T>& problem, const ReferenceInput<C>& input, const ReferenceInput<Sum>& same,
                            reference::Forward<C> exact)
    : Expectation(problem, exact, input.backward(), same.forward(), same.backward(), magnitude_of(input, exact)) {}

template <class T>
Expectation<T>::Expectation(const Problem<T>& problem, reference::Forward<C>& exact, reference::Backward<C> gradients,
                            const reference::Forward<Sum>& naive, const reference::Backward<Sum>& naive_gradients,
                            const Magnitude& a)
    : out_(std::move(exact.out), naive.out, a.out, 2, kUnit * Roundings<T>::kOut),
      dq_(std::move(gradients.dq), naive_gradients.dq, a.dq, 3, kUnit * Roundings<T>::kDqDk),
      dk_(std::move(gradients.dk), naive_gradients.dk, a.dk, 3, kUnit * Roundings<T>::kDqDk),
      dv_(std::move(gradients.dv), naive_gradients.dv, a.dv, 3, kUnit * Roundings<T>::kDv),
      lse_(std::move(exact.lse), naive.lse, a.lse, 2),
      weights_(std::move(exact.weights), naive.weights, a.weights, 2),
      dbias_(reference::reduce_to_bias(gradients.dbias, bias_sizes(problem)),
             reference::reduce_to_bias(naive_gradients.dbias, bias_sizes(problem)),
             reference::reduce_to_bias(a.dbias, bias_sizes(problem)), 3, kUnit * Roundings<T>::kDbias),
      dsinks_(std::move(gradients.dsinks), naive_gradients.dsinks, a.dsinks, 3, kUnit * Roundings<T>::kDbias),
      dposition_(std::move(gradients.dposition_table), naive_gradients.dposition_table, a.dposition, 3,
                 kUnit * Roundings<T>::kDbias) {}

template <class T>
typename View<Accumulator<T>, 4>::Sizes Expectation<T>::bias_sizes(const Problem<T>& problem) {
  return problem.bias.is_null() ? typename View<Sum, 4>::Sizes{1, 1, 1, 1} : problem.bias.sizes();
}

template class Expectation<float>;
template class Expectation<double>;
template class Expectation<BFloat16>;
template class Expectation<Float16>;

}  // namespace qkv::test
