// Whether a measured result is right: its distance from the textbook in f64, and how far it may be. Not: the tests' oracle.
#pragma once

#include <limits>
#include <span>

#include "qkv/tensor.h"
#include "qkv/types.h"

namespace qkv::cli {

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

/// The same numbers, contiguous, as another type.
template <class To, class From>
Tensor<To> converted(const View<const From, 4>& x) {
  Tensor<To> result({x.size(0), x.size(1), x.size(2), x.size(3)});
  To* to = result.data();
  for (Index b = 0; b < x.size(0); ++b) {
    for (Index h = 0; h < x.size(1); ++h) {
      for (Index i = 0; i < x.size(2); ++i) {
        for (Index d = 0; d < x.size(3); ++d) {
          if constexpr (sizeof(From) == 2 || sizeof(To) == 2) {
            *to++ = static_cast<To>(static_cast<float>(x(b, h, i, d)));
          } else {
            *to++ = static_cast<To>(x(b, h, i, d));
          }
        }
      }
    }
  }
  return result;
}

}  // namespace qkv::cli
