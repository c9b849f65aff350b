#include "judge/search/match.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "judge/textbook.h"

namespace qkv::judge {
namespace {

Shape without_ones(const Shape& shape) {
  Shape out;
  std::ranges::copy_if(shape, std::back_inserter(out), [](Index n) { return n != 1; });
  return out;
}

}  // namespace

Given to_given(const AnyTensor& tensor) {
  Given given;
  given.values = to_array(tensor);
  if (tensor.dtype == DType::kF32) given.unit = 0x1p-24;
  if (tensor.dtype == DType::kF16) given.unit = 0x1p-11;
  if (tensor.dtype == DType::kBF16) given.unit = 0x1p-8;
  if (tensor.dtype != DType::kF64) given.largest = std::numeric_limits<float>::max();
  return given;
}

double bound_of(const Number& expected, double unit) {
  return 4 * unit * expected.error + std::numeric_limits<float>::denorm_min();
}

bool agrees(const Number& expected, double got, double unit) {
  if (!std::isfinite(expected.value) || !std::isfinite(got)) {
    return std::isnan(expected.value) ? std::isnan(got) : expected.value == got;
  }
  const double bound = bound_of(expected, unit);
  return std::fabs(expected.value - got) <= bound;  // false for a bound that is not a number
}

bool matches(const Array& expected, const Given& given, Index* weight) {
  if (expected.shape != given.values.shape && without_ones(expected.shape) != without_ones(given.values.shape))
    return false;
  for (Index i = 0; i < expected.count(); ++i) {
    if (!agrees(expected[i], given.values[i].value, given.unit)) return false;
  }
  if (weight != nullptr) {
    double largest = 0;
    for (const Number& x : expected.data)
      largest = std::isfinite(x.value) ? std::max(largest, std::fabs(x.value)) : largest;
    for (const Number& x : expected.data) {
      *weight += !std::isfinite(x.value) || bound_of(x, given.unit) <= largest / 20 + std::numeric_limits<float>::min()
                     ? 1
                     : -1;
    }
  }
  return true;
}

std::optional<Difference> difference(const Array& expected, const Given& given) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (without_ones(expected.shape) != without_ones(given.values.shape)) return Difference{0, nan, nan, nan};
  std::optional<Difference> worst;
  double worst_ratio = 0;
  for (Index i = 0; i < expected.count(); ++i) {
    const double got = given.values[i].value;
    if (agrees(expected[i], got, given.unit)) continue;
    const double bound = bound_of(expected[i], given.unit), ratio = std::fabs(expected[i].value - got) / bound;
    if (!worst || ratio > worst_ratio || (std::isnan(ratio) && !std::isnan(worst_ratio))) {
      worst = Difference{i, expected[i].value, got, bound};
      worst_ratio = ratio;
    }
  }
  return worst;
}

}  // namespace qkv::judge
