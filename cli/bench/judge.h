// Whether a measured result is right: its distance from the textbook in f64, and how far it may be. Not: the tests'
// oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "qkv/types.h"

namespace qkv::cli {

/// How far a result is from the textbook in f64, and how far it may be.
struct Judgement {
  double error = 0, bound = 0;
  bool holds() const { return error <= bound; }  // false for NaN
};

/// The distance from 1 to the next number of T.
template <class T> constexpr double epsilon_of = static_cast<double>(std::numeric_limits<T>::epsilon());
template <> constexpr inline double epsilon_of<BFloat16> = 0x1p-7;
template <> constexpr inline double epsilon_of<Float16> = 0x1p-10;

/// error = max |got - exact|; bound = 3 max |naive - exact| + 8 eps `terms`. naive: the textbook in the type of `got`,
/// of which eps is; terms: the largest sum of the sizes of the terms that an element is made of.
inline Judgement judge(std::span<const double> got, std::span<const double> naive, std::span<const double> exact,
    double eps, double terms) {
  double error = 0, naive_error = 0;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const double difference = std::abs(got[n] - exact[n]);
    error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(error, difference);
    naive_error = std::max(naive_error, std::abs(naive[n] - exact[n]));
  }
  return {error, 3 * naive_error + 8 * eps * terms};
}

/// One sum without a naive form.
inline Judgement judge_sum(double got, double exact, double terms, double eps = epsilon_of<float>) {
  return {std::abs(got - exact), 8 * eps * terms};
}

/// The worse of two, by error / bound.
inline Judgement worse(const Judgement& a, const Judgement& b) {
  if (!a.holds() || !b.holds()) return a.holds() ? b : a;
  return a.error * b.bound > b.error * a.bound ? a : b;
}

}  // namespace qkv::cli
