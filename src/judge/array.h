// Small dense arrays of Number, and the few operations textbooks are written in. Not: speed; probes have some hundred numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "judge/number.h"
#include "qkv/types.h"

namespace qkv::judge {

using Shape = std::vector<Index>;

/// Thrown where arrays do not fit an operation: what is tried (an entry of the catalogue) does not apply to these shapes.
struct NotApplicable {};
inline void need(bool holds) {
  if (!holds) throw NotApplicable{};
}

struct Array {
  Shape shape;
  std::vector<Number> data;  ///< row-major

  Array() = default;
  explicit Array(Shape sizes, Number fill = 0);

  Index size(int axis) const;  ///< negative axes count from the end
  Index rank() const { return static_cast<Index>(shape.size()); }
  Index count() const { return static_cast<Index>(data.size()); }
  Number& operator[](Index i) { return data[static_cast<std::size_t>(i)]; }
  Number operator[](Index i) const { return data[static_cast<std::size_t>(i)]; }
};

Index count_of(const Shape& shape);

/// The same numbers in another shape of as many elements.
Array reshape(Array a, Shape shape);
/// out.shape[i] = a.shape[order[i]].
Array permute(const Array& a, const std::vector<int>& order);
/// The last two axes exchanged.
Array transpose(const Array& a);
/// a [..., m, k] b [..., k, n] -> [..., m, n]; leading axes are equal, or b has none.
Array matmul(const Array& a, const Array& b);
/// x [..., I] W [I, O] + b [O]; an empty b is none.
Array linear(const Array& x, const Array& weight, const Array& bias = {});
/// Softmax along one axis; -inf gives 0, a slice of only -inf gives NaN, as exp(-inf - -inf) does.
Array softmax(const Array& a, int axis = -1, bool subtract_maximum = true);
Array sum(const Array& a, int axis);  ///< the axis stays, of size 1
Array mean(const Array& a, int axis);

Array map(Array a, const std::function<Number(Number)>& f);
/// Element by element; b is broadcast to a's shape (axes of size 1, or missing in front).
Array zip(Array a, const Array& b, const std::function<Number(Number, Number)>& f);
Array operator+(const Array& a, const Array& b);
Array operator-(const Array& a, const Array& b);
Array operator*(const Array& a, const Array& b);
Array operator*(const Array& a, Number factor);

/// a[begin .. end) of one axis.
Array slice(const Array& a, int axis, Index begin, Index end);
Array concat(const std::vector<Array>& parts, int axis);
/// a with its elements along `axis` `from`.
Array take(const Array& a, int axis, const std::vector<Index>& from);

}  // namespace qkv::judge
