// What a case of attention must give, and how far from it the library may be (bounds.h).
#pragma once

#include "support/bounds.h"
#include "support/magnitude.h"
#include "support/problem.h"

namespace qkv::test {

/// How often a term of each result has been rounded to T before it was added. The gradients read out, which is rounded; a
/// kernel on bf16 products rounds p (and the sum that divides it is of the rounded ones) and dS as well.
template <class T>
struct Roundings {
  static constexpr double kOut = std::is_same_v<T, BFloat16> ? 2 : 0;
  static constexpr double kDv = std::is_same_v<T, BFloat16> ? 1 : 0;
  static constexpr double kDqDk = std::is_same_v<T, BFloat16> ? 2 : 1;
  static constexpr double kDbias = 1;
};

/// Everything that a problem must give.
template <class T>
class Expectation {
 public:
  explicit Expectation(const Problem<T>& problem) : Expectation(problem, problem.template reference_input<Wider<T>>()) {}

  /// Compares all outputs of a finished run.
  testing::AssertionResult holds_forward(const Result<T>& result, const std::string& name, Worst& worst) const {
    if (auto ok = within(out_, copy_as<T>(result.out.view), "out", name, worst); !ok) return ok;
    return within(lse_, result.lse, "lse", name, worst);
  }
  testing::AssertionResult holds_weights(const Result<T>& result, const std::string& name, Worst& worst) const {
    return within(weights_, result.weights, "weights", name, worst);
  }
  testing::AssertionResult holds_backward(const Result<T>& result, const std::string& name, Worst& worst) const {
    const auto& [dq, dk, dv] = result.gradients.views;
    if (auto ok = within(dq_, copy_as<T>(dq), "dq", name, worst); !ok) return ok;
    if (auto ok = within(dk_, copy_as<T>(dk), "dk", name, worst); !ok) return ok;
    if (auto ok = within(dv_, copy_as<T>(dv), "dv", name, worst); !ok) return ok;
    if (auto ok = within(dsinks_, result.dsinks, "dsinks", name, worst); !ok) return ok;
    if (auto ok = within(dposition_, result.dposition, "dposition", name, worst); !ok) return ok;
    return within(dbias_, result.dbias, "dbias", name, worst);
  }

 private:
  using Sum = Accumulator<T>;
  using C = Wider<T>;

  Expectation(const Problem<T>& problem, const ReferenceInput<C>& input)
      : Expectation(problem, input, problem.template reference_input<Sum>(), input.forward()) {}

  Expectation(const Problem<T>& problem, const ReferenceInput<C>& input, const ReferenceInput<Sum>& same,
              reference::Forward<C> exact)
      : Expectation(problem, exact, input.backward(), same.forward(), same.backward(), magnitude_of(input, exact)) {}

  Expectation(const Problem<T>& problem, reference::Forward<C>& exact, reference::Backward<C> gradients,
              const reference::Forward<Sum>& naive, const reference::Backward<Sum>& naive_gradients, const Magnitude& a)
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

  static typename View<Accumulator<T>, 4>::Sizes bias_sizes(const Problem<T>& problem) {
    return problem.bias.is_null() ? typename View<Sum, 4>::Sizes{1, 1, 1, 1} : problem.bias.sizes();
  }

  static constexpr double kUnit = kUnitRoundoff<T>;

  Expected<T> out_, dq_, dk_, dv_;
  Expected<Sum> lse_, weights_, dbias_, dsinks_, dposition_;
};

}  // namespace qkv::test
