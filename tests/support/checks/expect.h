// The expected results of a case of attention, and how far from it the library may be (bounds.h).
#pragma once

#include <optional>

#include "support/checks/bounds.h"
#include "support/problem.h"

namespace qkv::test {

struct Magnitude;

/// Everything that a problem must give.
template <class T> class Expectation {
 public:
  /// Without `gradients`, holds_backward is not asked.
  explicit Expectation(const Problem<T>& problem, bool gradients = true);
  ~Expectation();

  /// Compares all outputs of a finished run.
  testing::AssertionResult holds_forward(const Result<T>& result, const std::string& name, Worst& worst) const;
  testing::AssertionResult holds_weights(const Result<T>& result, const std::string& name, Worst& worst) const;
  testing::AssertionResult holds_backward(const Result<T>& result, const std::string& name, Worst& worst) const;

 private:
  using Sum = Accumulator<T>;
  using C = Wider<T>;

  struct Outputs {
    Expected<T> out;
    Expected<Sum> lse, weights;
  };
  struct Gradients {
    Expected<T> dq, dk, dv;
    Expected<Sum> dbias, dsinks, dposition;
  };

  static typename View<Accumulator<T>, 4>::Sizes bias_sizes(const Problem<T>& problem);

  static constexpr double kUnit = kUnitRoundoff<T>;

  std::optional<Outputs> outputs_;
  std::optional<Gradients> gradients_;
};

}  // namespace qkv::test
