// Whether a measured result is right: its distance from the textbook in f64, and how far it may be. Not: the tests' oracle.
#pragma once

#include <limits>
#include <span>

#include "qkv/tensor.h"
#include "qkv/types.h"

namespace qkv::cli {

inline constexpr Index kSmallLength = 160;  ///< tokens of a problem that the textbook computes beside it

/// How far a result is from the textbook in f64, and how far it may be.
struct Judgement {
  double error = 0, bound = 0;
  bool holds() const { return error <= bound; }  // false for NaN
};

/// error = max |got - exact|; bound = 3 max |naive - exact| + 8 eps `terms`. naive: the textbook in the type of `got`;
/// eps: the distance from 1 to the next number of that type; terms: the largest sum of the sizes of the terms that an
/// element is made of.
Judgement judge(std::span<const double> got, std::span<const double> naive, std::span<const double> exact, double eps,
                double terms);
/// One f32 sum, without a naive form: bound = 8 eps `terms`.
Judgement judge_sum(double got, double exact, double terms);
/// The worse of two, by error / bound.
Judgement worse(const Judgement& a, const Judgement& b);

/// The distance from 1 to the next number of T.
template <class T>
constexpr double epsilon_of = static_cast<double>(std::numeric_limits<T>::epsilon());
template <>
constexpr inline double epsilon_of<BFloat16> = 0x1p-7;
template <>
constexpr inline double epsilon_of<Float16> = 0x1p-10;

}  // namespace qkv::cli
