// Small dense arrays of Number, and the few operations textbooks are written in.
#pragma once

#include <functional>
#include <vector>

#include "judge/number.h"
#include "qkv/types.h"

namespace qkv::judge {

using Shape = std::vector<Index>;

/// Thrown where arrays do not fit an operation: what is tried (an entry of the catalogue) does not apply to these
/// shapes.
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

double largest(const Array& a);  ///< magnitude
/// [..., T, T] with what lies behind the diagonal replaced.
Array past(Array a, double future);

/// The shape of both, axes counted from the end; one of size 1 becomes the other's.
Shape joint(const Shape& a, const Shape& b);
/// a in a joint shape of it.
Array broadcast(const Array& a, const Shape& shape);

template <class F> Array map(Array a, F&& f) {
  for (Number& x : a.data) x = f(x);
  return a;
}
/// Element by element, in the joint shape.
template <class F> Array zip(const Array& a, const Array& b, F&& f) {
  need(!b.data.empty() || !b.shape.empty());
  const Shape shape = a.shape == b.shape ? a.shape : joint(a.shape, b.shape);
  Array out = a.shape == shape ? a : broadcast(a, shape);
  const bool same = b.shape == shape;
  const Array spread = same || b.count() == 1 ? Array() : broadcast(b, shape);
  const Number* other = same ? b.data.data() : b.count() == 1 ? b.data.data() : spread.data.data();
  const Index step = same || b.count() != 1 ? 1 : 0;
  for (Number& x : out.data) x = f(x, *other), other += step;
  return out;
}
inline Array operator+(const Array& a, const Array& b) { return zip(a, b, std::plus<>()); }
inline Array operator-(const Array& a, const Array& b) { return zip(a, b, std::minus<>()); }
inline Array operator*(const Array& a, const Array& b) { return zip(a, b, std::multiplies<>()); }
inline Array operator/(const Array& a, const Array& b) { return zip(a, b, std::divides<>()); }
inline Array operator*(const Array& a, Number factor) {
  return map(a, [factor](Number x) { return x * factor; });
}

/// a[begin .. end) of one axis.
Array slice(const Array& a, int axis, Index begin, Index end);
Array concat(const std::vector<Array>& parts, int axis);
/// a with its elements along `axis` `from`.
Array take(const Array& a, int axis, const std::vector<Index>& from);

/// [B, L, H d] -> [B, H, L, d], and back.
Array split_heads(const Array& x, Index heads);
Array merge_heads(const Array& x);
/// x^T dy over all but the last axis: the gradient of W in y = x W.
Array weight_gradient(const Array& x, const Array& dy);

}  // namespace qkv::judge
