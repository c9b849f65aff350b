// The bound on each element's error and how a tensor is held against it: computed bounds, none typed by hand.
//   error(library) <= 2 x error(naive, same type) + 4 eps A     gradients: 3 x     errors against the next wider type
// error(naive) is its largest in the tensor, A the magnitude of the element: the same expression with every term
// positive. For 16-bit types naive is the float form of the same inputs, eps is float's, and there is added u (|exact|
// + n A), u the unit roundoff of the type: the result's own rounding and n roundings on the way to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "support/result_hash.h"
#include "support/storage.h"

namespace qkv::test {

/// The type in which the truth about T is computed.
template <class T> using Wider = std::conditional_t<std::is_same_v<Accumulator<T>, float>, double, long double>;

/// The exact value of one tensor and the bound on each element's error, both flat in row-major order.
template <class T> struct Expected {
  Tensor<Wider<T>> exact;
  std::vector<double> bounds;

  /// Consumes the exact tensor; `naive` has the type of sums and `factor` is 2 or 3. `inner` is u n.
  Expected(Tensor<Wider<T>> exact_values, const Tensor<Accumulator<T>>& naive, const Tensor<double>& a, double factor,
      double inner = 0);
};

/// Largest error / bound measured for each output, and in which case.
class Worst {
 public:
  void note(const std::string& output, double ratio, const std::string& case_name);
  void print(const char* title) const;

  /// How many tensors were held against their bounds.
  std::int64_t compared() const { return compared_; }
  double largest() const;

 private:
  std::map<std::string, std::pair<double, std::string>> worst_;
  std::int64_t compared_ = 0;
};

/// Holds `actual` against `expected`: NaN where NaN is expected, the same infinity, otherwise within the bound.
template <class T> testing::AssertionResult within(const Expected<T>& expected, const Tensor<T>& actual,
    const std::string& output, const std::string& case_name, Worst& worst);

/// Bit-identical (NaN equals NaN of the same bits).
template <class T> bool same_bits(const Tensor<T>& a, const Tensor<T>& b) {
  if constexpr (std::is_same_v<T, long double>)
    return std::ranges::equal(a.span(), b.span());  // 6 of 16 bytes hold nothing
  result_hash().add(a);
  if (a.sizes() != b.sizes()) return false;
  return a.count() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(T)) == 0;
}

}  // namespace qkv::test
