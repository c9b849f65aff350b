#include "support/checks/bounds.h"

#include <cstdio>
#include <limits>

namespace qkv::test {

template <class T> Expected<T>::Expected(Tensor<Wider<T>> exact_values, const Tensor<Accumulator<T>>& naive,
    const Tensor<double>& a, double factor, double inner)
    : exact(std::move(exact_values)), bounds(static_cast<std::size_t>(exact.count())) {
  double naive_error = 0;
  for (Index n = 0; n < exact.count(); ++n) {
    const double error = static_cast<double>(std::abs(static_cast<Wider<T>>(naive.data()[n]) - exact.data()[n]));
    if (std::isfinite(error)) naive_error = std::max(naive_error, error);
  }
  using Sum = Accumulator<T>;
  const double epsilon = static_cast<double>(std::numeric_limits<Sum>::epsilon());
  // Results below the normal range may be flushed to 0; up to 1e6 of them may add up. Half a subnormal's step of
  // binary16.
  const double tiny =
      1e6 * static_cast<double>(std::numeric_limits<Sum>::min()) + (std::is_same_v<T, Float16> ? 0x1p-25 : 0);
  for (Index n = 0; n < exact.count(); ++n) {
    const double own = kUnitRoundoff<T> * static_cast<double>(std::abs(exact.data()[n]));
    bounds[static_cast<std::size_t>(n)] =
        factor * naive_error + (4 * epsilon + inner) * a.data()[n] + (std::isfinite(own) ? own : 0) + tiny;
  }
}

void Worst::note(const std::string& output, double ratio, const std::string& case_name) {
  ++compared_;
  auto& entry = worst_[output];
  if (ratio >= entry.first) entry = {ratio, case_name};
}

void Worst::print(const char* title) const {
  for (const auto& [output, entry] : worst_) {
    std::printf("%s %-8s worst error/bound %.3f  %s\n", title, output.c_str(), entry.first, entry.second.c_str());
  }
}

double Worst::largest() const {
  double ratio = 0;
  for (const auto& [output, entry] : worst_) ratio = std::max(ratio, entry.first);
  return ratio;
}

namespace {

/// Error over bound of one element; infinite where NaN or an infinity is wrong, and where the bound says nothing.
template <class T> double error_over_bound(Wider<T> want, Wider<T> got, double bound) {
  if (!std::isfinite(want)) return (std::isnan(want) && std::isnan(got)) || want == got ? 0 : HUGE_VAL;
  if (!std::isfinite(bound) || std::isnan(got)) return HUGE_VAL;
  const bool too_large = kIsHalf<T> && static_cast<double>(std::abs(want)) + bound > kLargestNumber<T>;
  if (too_large && std::isinf(got) && (got > 0) == (want > 0)) return 0;
  return static_cast<double>(std::abs(want - got)) / bound;
}

}  // namespace

template <class T> testing::AssertionResult within(const Expected<T>& expected, const Tensor<T>& actual,
    const std::string& output, const std::string& case_name, Worst& worst) {
  result_hash().add(actual);
  double worst_ratio = 0;
  Index worst_at = -1, failures = 0;
  for (Index n = 0; n < actual.count(); ++n) {
    const double ratio = error_over_bound<T>(
        expected.exact.data()[n], number_as<Wider<T>>(actual.data()[n]), expected.bounds[static_cast<std::size_t>(n)]);
    failures += !(ratio <= 1);
    if (!(ratio <= worst_ratio) || worst_at < 0) worst_ratio = ratio, worst_at = n;
  }
  worst.note(output, worst_ratio, case_name);
  if (failures == 0) return testing::AssertionSuccess();
  const auto at = static_cast<std::size_t>(worst_at);
  return testing::AssertionFailure() << output << " of " << case_name << ": " << failures << " of " << actual.count()
                                     << " outside the bound; worst at flat index " << worst_at << " of "
                                     << actual.shape() << ": expected "
                                     << static_cast<double>(expected.exact.data()[at]) << ", got "
                                     << number_as<double>(actual.data()[at]) << ", bound " << expected.bounds[at]
                                     << ", ratio " << worst_ratio;
}

#define QKV_TEST_BOUNDS(T)                     \
  template struct Expected<T>;                 \
  template testing::AssertionResult within<T>( \
      const Expected<T>&, const Tensor<T>&, const std::string&, const std::string&, Worst&);
QKV_TEST_TYPES(QKV_TEST_BOUNDS)

}  // namespace qkv::test
