// Whether an answer is what a textbook gives, within the error that rounding explains.
#pragma once

#include <limits>
#include <optional>

#include "judge/array.h"
#include "qkv/state_dict.h"

namespace qkv::judge {

/// An answer's tensor: its numbers, and the unit of rounding of its type.
struct Given {
  Array values;
  double unit = 0x1p-53;
  double largest = std::numeric_limits<double>::max();  ///< of its type: Range
};
Given to_given(const AnyTensor& tensor);

struct Difference {
  Index index = 0;  ///< of the element that is furthest outside its bound
  double expected = 0, got = 0, bound = 0;
};

/// Bounds are Number's errors times 4 units: other orders of the same operations stay within them.
double bound_of(const Number& expected, double unit);
/// Both not finite in the same way, or within the bound.
bool agrees(const Number& expected, double got, double unit);
/// Nothing when all elements agree. Shapes that differ only in axes of size 1 are the same; other shapes are a
/// difference of NaN.
std::optional<Difference> difference(const Array& expected, const Given& given);
/// The same as a yes or no, faster. `weight` gains the elements of which this says something, less those of which it
/// does not: a bound of a twentieth of the largest element or more explains anything.
bool matches(const Array& expected, const Given& given, Index* weight = nullptr);

}  // namespace qkv::judge
