// A number with the magnitude of the expression that made it: the same expression with every term positive, the A of
// the bounds (support/checks/bounds.h). Computed with it, the reference gives values and bounds in one pass. Not: an
// error bound by itself.
#pragma once

#include <cmath>

#include "reference/linear_backward.h"

namespace qkv::test {

struct Measured {
  double value = 0, size = 0;

  Measured() = default;
  explicit Measured(double x) : value(x), size(std::abs(x)) {}
  Measured(double v, double s) : value(v), size(s) {}

  Measured& operator+=(Measured b) { return *this = *this + b; }
  Measured& operator-=(Measured b) { return *this = *this - b; }
  friend Measured operator+(Measured a, Measured b) { return {a.value + b.value, a.size + b.size}; }
  friend Measured operator-(Measured a, Measured b) { return {a.value - b.value, a.size + b.size}; }
  friend Measured operator*(Measured a, Measured b) { return {a.value * b.value, a.size * b.size}; }
  /// The error of a divisor may be eps times its own magnitude.
  friend Measured operator/(Measured a, Measured b) {
    return {a.value / b.value, a.size / std::abs(b.value) * (b.size / std::abs(b.value))};
  }
  friend bool operator<(Measured a, Measured b) { return a.value < b.value; }
  friend bool operator>(Measured a, Measured b) { return a.value > b.value; }
  friend bool operator==(Measured a, Measured b) { return a.value == b.value; }
};

inline Measured sqrt(Measured x) { return Measured(std::sqrt(x.value)); }
inline Measured log(Measured x) { return Measured(std::log(x.value)); }
/// An argument whose error is eps times its magnitude changes the result by that fraction.
inline Measured exp(Measured x) {
  const double y = std::exp(x.value);
  return {y, y * (1 + x.size)};
}
/// See reference/linear_head.h.
inline Measured settled(Measured x) { return Measured(x.value); }

}  // namespace qkv::test
