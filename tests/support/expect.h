// What a case must give, and how far from it the library may be: computed bounds, none typed by hand.
//   error(library) <= 2 x error(naive, same type) + 4 eps A     gradients: 3 x     errors against the next wider type
// error(naive) is its largest in the tensor, A the magnitude of the element (magnitude.h). For 16-bit types naive is the float
// form of the same inputs, eps is float's, and there is added u (|exact| + n A), u the unit roundoff of the type: the result's
// own rounding and n roundings on the way to it (Roundings).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <type_traits>

#include "support/magnitude.h"
#include "support/problem.h"

namespace qkv::test {

/// The type in which the truth about T is computed.
template <class T>
using Wider = std::conditional_t<std::is_same_v<Accumulator<T>, float>, double, long double>;

/// How often a term of each result has been rounded to T before it was added. The gradients read out, which is rounded; a
/// kernel on bf16 products rounds p (and the sum that divides it is of the rounded ones) and dS as well.
template <class T>
struct Roundings {
  static constexpr double kOut = std::is_same_v<T, BFloat16> ? 2 : 0;
  static constexpr double kDv = std::is_same_v<T, BFloat16> ? 1 : 0;
  static constexpr double kDqDk = std::is_same_v<T, BFloat16> ? 2 : 1;
  static constexpr double kDbias = 1;
};

/// The exact value of one tensor and the bound on each element's error, both flat in row-major order.
template <class T>
struct Expected {
  Tensor<Wider<T>> exact;
  std::vector<double> bounds;

  /// Consumes the exact tensor; `naive` has the type of sums and `factor` is 2 or 3. `inner` is u n.
  Expected(Tensor<Wider<T>> exact_values, const Tensor<Accumulator<T>>& naive, const Tensor<double>& a, double factor,
           double inner = 0)
      : exact(std::move(exact_values)), bounds(static_cast<std::size_t>(exact.count())) {
    double naive_error = 0;
    for (Index n = 0; n < exact.count(); ++n) {
      const double error = static_cast<double>(std::abs(static_cast<Wider<T>>(naive.data()[n]) - exact.data()[n]));
      if (std::isfinite(error)) naive_error = std::max(naive_error, error);
    }
    using Sum = Accumulator<T>;
    const double epsilon = static_cast<double>(std::numeric_limits<Sum>::epsilon());
    // Results below the normal range may be flushed to 0; up to 1e6 of them may add up. Half a subnormal's step of binary16.
    const double tiny = 1e6 * static_cast<double>(std::numeric_limits<Sum>::min()) + (std::is_same_v<T, Float16> ? 0x1p-25 : 0);
    for (Index n = 0; n < exact.count(); ++n) {
      const double own = kUnitRoundoff<T> * static_cast<double>(std::abs(exact.data()[n]));
      bounds[static_cast<std::size_t>(n)] =
          factor * naive_error + (4 * epsilon + inner) * a.data()[n] + (std::isfinite(own) ? own : 0) + tiny;
    }
  }
};

/// Largest error / bound seen for each output, and in which case.
class Worst {
 public:
  void note(const std::string& output, double ratio, const std::string& case_name) {
    auto& entry = worst_[output];
    if (ratio >= entry.first) entry = {ratio, case_name};
  }
  void print(const char* title) const {
    for (const auto& [output, entry] : worst_) {
      std::printf("%s %-8s worst error/bound %.3f  %s\n", title, output.c_str(), entry.first, entry.second.c_str());
    }
  }

 private:
  std::map<std::string, std::pair<double, std::string>> worst_;
};

/// Holds `actual` against `expected`: NaN where NaN is expected, the same infinity, else within the bound.
template <class T>
testing::AssertionResult within(const Expected<T>& expected, const Tensor<T>& actual, const std::string& output,
                                const std::string& case_name, Worst& worst) {
  double worst_ratio = 0;
  Index worst_at = -1, failures = 0;
  for (Index n = 0; n < actual.count(); ++n) {
    const Wider<T> want = expected.exact.data()[n], got = number_as<Wider<T>>(actual.data()[n]);
    double ratio = 0;
    const double bound = expected.bounds[static_cast<std::size_t>(n)];
    const bool too_large = static_cast<double>(std::abs(want)) + bound > kLargestNumber<T> && kIsHalf<T>;
    if (std::isinf(got) && too_large && (got > 0) == (want > 0)) continue;
    if (std::isnan(want) || std::isnan(got) || std::isinf(want)) {
      ratio = (std::isnan(want) && std::isnan(got)) || want == got ? 0 : HUGE_VAL;
    } else {
      ratio = static_cast<double>(std::abs(want - got)) / bound;
    }
    failures += ratio > 1;
    if (ratio > worst_ratio || worst_at < 0) worst_ratio = ratio, worst_at = n;
  }
  worst.note(output, worst_ratio, case_name);
  if (failures == 0) return testing::AssertionSuccess();
  const auto at = static_cast<std::size_t>(worst_at);
  return testing::AssertionFailure() << output << " of " << case_name << ": " << failures << " of " << actual.count()
                                     << " outside the bound; worst at flat index " << worst_at << " of " << actual.shape()
                                     << ": expected " << static_cast<double>(expected.exact.data()[at]) << ", got "
                                     << number_as<double>(actual.data()[at]) << ", bound " << expected.bounds[at] << ", ratio "
                                     << worst_ratio;
}

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
               reference::reduce_to_bias(a.dbias, bias_sizes(problem)), 3, kUnit * Roundings<T>::kDbias) {}

  static typename View<Accumulator<T>, 4>::Sizes bias_sizes(const Problem<T>& problem) {
    return problem.bias.is_null() ? typename View<Sum, 4>::Sizes{1, 1, 1, 1} : problem.bias.sizes();
  }

  static constexpr double kUnit = kUnitRoundoff<T>;

  Expected<T> out_, dq_, dk_, dv_;
  Expected<Sum> lse_, weights_, dbias_;
};

/// The same bits (NaN equals NaN of the same bits).
template <class T>
bool same_bits(const Tensor<T>& a, const Tensor<T>& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(T)) == 0;
}

}  // namespace qkv::test
