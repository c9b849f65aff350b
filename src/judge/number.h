// A number that knows how far rounding may have moved it: running error analysis to first order (Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.3). The error is in units of the rounding of whoever computes the same
// in floating point, so one evaluation bounds float32 and float64 alike. Not: rigorous intervals; a comparison allows a
// small multiple (match.h).
#pragma once

#include <cmath>
#include <limits>

namespace qkv::judge {

struct Number {
  double value = 0;
  double error = 0;  ///< bound of |computed - exact| / u, to first order in u

  Number() = default;
  Number(double exact) : value(exact) {}  // NOLINT: inputs are exact numbers
  Number(double v, double e) : value(v), error(e) {}
};

inline Number operator+(Number a, Number b) {
  const double v = a.value + b.value;
  return {v, a.error + b.error + std::fabs(v)};
}
inline Number operator-(Number a) { return {-a.value, a.error}; }
inline Number operator-(Number a, Number b) { return a + (-b); }
inline Number operator*(Number a, Number b) {
  const double v = a.value * b.value;
  return {v, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + std::fabs(v)};
}
inline Number operator/(Number a, Number b) {
  const double v = a.value / b.value;
  if (std::isinf(b.value)) return {v, 0};  // 0, whatever the infinity's error
  return {v, (a.error + std::fabs(v) * b.error) / std::fabs(b.value) + std::fabs(v)};
}
/// The largest number of whoever computes the same: exp overflows beyond it. float32 overflows at exp(88.8), float64 at
/// exp(709.8).
inline thread_local double largest_number = std::numeric_limits<double>::max();

class Range {
 public:
  explicit Range(double largest) : kept_(largest_number) { largest_number = largest; }
  ~Range() { largest_number = kept_; }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  double kept_;
};

inline Number exp(Number a) {
  double v = std::exp(a.value);
  if (v > largest_number) v = std::numeric_limits<double>::infinity();
  return {v, v == 0 ? 0 : v * (a.error + 2)};  // exp(-inf) is exactly 0, whatever -inf's error
}
inline Number log(Number a) {
  return {std::log(a.value), a.error / std::fabs(a.value) + 2 * std::fabs(std::log(a.value))};
}
inline Number sqrt(Number a) {
  const double v = std::sqrt(a.value);
  return {v, v == 0 ? 0 : 0.5 * a.error / v + v};
}
/// A function's value, which rounds to two units, and its slope.
inline Number rounded(double v, double slope, Number a) { return {v, std::fabs(slope) * a.error + 2 * std::fabs(v)}; }
inline Number sin(Number a) { return rounded(std::sin(a.value), std::cos(a.value), a); }
inline Number cos(Number a) { return rounded(std::cos(a.value), std::sin(a.value), a); }
inline Number tanh(Number a) {
  const double v = std::tanh(a.value);
  return {v, (std::fabs(v) < 1 ? (1 - v * v) * a.error : 0) + 2 * std::fabs(v)};
}
inline Number erf(Number a) {
  constexpr double kSlopeAtZero = 1.128379167095513;  // 2 / sqrt(pi)
  return rounded(std::erf(a.value), kSlopeAtZero * std::exp(-a.value * a.value), a);
}
inline Number sigmoid(Number a) {
  const double v = 1 / (1 + std::exp(-a.value));
  return {v, v == 0 ? 0 : v * (1 - v) * a.error + 3 * v};
}
inline Number fabs(Number a) { return {std::fabs(a.value), a.error}; }
inline Number max(Number a, Number b) { return a.value < b.value || std::isnan(b.value) ? b : a; }

}  // namespace qkv::judge
