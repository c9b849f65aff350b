// The bound on each element's error and how a tensor is held against it: computed bounds, none typed by hand.
//   error(library) <= 2 x error(naive, same type) + 4 eps A     gradients: 3 x     errors against the next wider type
// error(naive) is its largest in the tensor, A the magnitude of the element: the same expression with every term positive. For
// 16-bit types naive is the float form of the same inputs, eps is float's, and there is added u (|exact| + n A), u the unit
// roundoff of the type: the result's own rounding and n roundings on the way to it. Not: what A is of each form.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "support/result_hash.h"
#include "support/storage.h"

namespace qkv::test {

/// The type in which the truth about T is computed.
template <class T>
using Wider = std::conditional_t<std::is_same_v<Accumulator<T>, float>, double, long double>;

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
    ++compared_;
    auto& entry = worst_[output];
    if (ratio >= entry.first) entry = {ratio, case_name};
  }
  void print(const char* title) const {
    for (const auto& [output, entry] : worst_) {
      std::printf("%s %-8s worst error/bound %.3f  %s\n", title, output.c_str(), entry.first, entry.second.c_str());
    }
  }

  /// How many tensors were held against their bounds.
  std::int64_t compared() const { return compared_; }
  double largest() const {
    double ratio = 0;
    for (const auto& [output, entry] : worst_) ratio = std::max(ratio, entry.first);
    return ratio;
  }

 private:
  std::map<std::string, std::pair<double, std::string>> worst_;
  std::int64_t compared_ = 0;
};

/// Error over bound of one element; infinite where NaN or an infinity is wrong, and where the bound says nothing.
template <class T>
double error_over_bound(Wider<T> want, Wider<T> got, double bound) {
  if (!std::isfinite(want)) return (std::isnan(want) && std::isnan(got)) || want == got ? 0 : HUGE_VAL;
  if (!std::isfinite(bound) || std::isnan(got)) return HUGE_VAL;
  const bool too_large = kIsHalf<T> && static_cast<double>(std::abs(want)) + bound > kLargestNumber<T>;
  if (too_large && std::isinf(got) && (got > 0) == (want > 0)) return 0;
  return static_cast<double>(std::abs(want - got)) / bound;
}

/// Holds `actual` against `expected`: NaN where NaN is expected, the same infinity, otherwise within the bound.
template <class T>
testing::AssertionResult within(const Expected<T>& expected, const Tensor<T>& actual, const std::string& output,
                                const std::string& case_name, Worst& worst) {
  result_hash().add(actual);
  double worst_ratio = 0;
  Index worst_at = -1, failures = 0;
  for (Index n = 0; n < actual.count(); ++n) {
    const double ratio = error_over_bound<T>(expected.exact.data()[n], number_as<Wider<T>>(actual.data()[n]),
                                             expected.bounds[static_cast<std::size_t>(n)]);
    failures += !(ratio <= 1);
    if (!(ratio <= worst_ratio) || worst_at < 0) worst_ratio = ratio, worst_at = n;
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

/// The same bits (NaN equals NaN of the same bits).
template <class T>
bool same_bits(const Tensor<T>& a, const Tensor<T>& b) {
  result_hash().add(a);
  if (a.sizes() != b.sizes()) return false;
  return a.count() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(T)) == 0;
}

}  // namespace qkv::test
