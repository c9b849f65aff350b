// What a case of attention must give, and how far from it the library may be (bounds.h).
#pragma once

#include "support/checks/bounds.h"
#include "support/problem.h"

namespace qkv::test {

struct Magnitude;

/// Everything that a problem must give.
template <class T>
class Expectation {
 public:
  explicit Expectation(const Problem<T>& problem);
  ~Expectation();

  /// Compares all outputs of a finished run.
  testing::AssertionResult holds_forward(const Result<T>& result, const std::string& name, Worst& worst) const;
  testing::AssertionResult holds_weights(const Result<T>& result, const std::string& name, Worst& worst) const;
  testing::AssertionResult holds_backward(const Result<T>& result, const std::string& name, Worst& worst) const;

 private:
  using Sum = Accumulator<T>;
  using C = Wider<T>;

  Expectation(const Problem<T>& problem, const ReferenceInput<C>& input);

  Expectation(const Problem<T>& problem, const ReferenceInput<C>& input, const ReferenceInput<Sum>& same,
              reference::Forward<C> exact);

  Expectation(const Problem<T>& problem, reference::Forward<C>& exact, reference::Backward<C> gradients,
              const reference::Forward<Sum>& naive, const reference::Backward<Sum>& naive_gradients, const Magnitude& a);

  static typename View<Accumulator<T>, 4>::Sizes bias_sizes(const Problem<T>& problem);

  static constexpr double kUnit = kUnitRoundoff<T>;

  Expected<T> out_, dq_, dk_, dv_;
  Expected<Sum> lse_, weights_, dbias_, dsinks_, dposition_;
};

}  // namespace qkv::test
