#include "judge/array.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace qkv::judge {
namespace {

std::size_t axis_of(const Array& a, int axis) {
  const int at = axis < 0 ? axis + static_cast<int>(a.rank()) : axis;
  need(0 <= at && at < static_cast<int>(a.rank()));
  return static_cast<std::size_t>(at);
}

/// An array as [outer, n, inner] around one axis.
struct Around {
  Index outer = 1, n = 1, inner = 1;
  Around(const Shape& shape, std::size_t axis) : n(shape[axis]) {
    for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
    for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  }
  /// Where the i-th of outer * inner slices along the axis begins.
  Index begin(Index i) const { return i / inner * n * inner + i % inner; }
};

/// Sum of products of n pairs with strides, with the error of any order of summation.
Number dot(const Number* a, Index a_stride, const Number* b, Index b_stride, Index n) {
  double value = 0, error = 0, magnitude = 0;
  for (Index i = 0; i < n; ++i, a += a_stride, b += b_stride) {
    const double product = a->value * b->value;
    value += product;
    magnitude += std::fabs(product);
    error += std::fabs(a->value) * b->error + std::fabs(b->value) * a->error;
  }
  return {value, error + static_cast<double>(n + 1) * magnitude};
}

/// An array of this shape whose axes go through `a` in these steps.
Array strided(const Array& a, const Shape& shape, const std::vector<Index>& stride) {
  Array out(shape);
  std::vector<Index> at(shape.size(), 0);
  Index from = 0;
  for (Number& x : out.data) {
    x = a[from];
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      from += stride[axis];
      if (++at[axis] < shape[axis]) break;
      from -= stride[axis] * shape[axis];
      at[axis] = 0;
    }
  }
  return out;
}

}  // namespace

Array::Array(Shape sizes, Number fill)
    : shape(std::move(sizes)), data(static_cast<std::size_t>(count_of(shape)), fill) {}

Index Array::size(int axis) const { return shape[axis_of(*this, axis)]; }

Index count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

Array reshape(Array a, Shape shape) {
  need(count_of(shape) == a.count());
  a.shape = std::move(shape);
  return a;
}

Array permute(const Array& a, const std::vector<int>& order) {
  need(order.size() == a.shape.size());
  const std::size_t rank = order.size();
  std::vector<Index> strides(rank, 1), shape(rank), stride(rank);
  for (std::size_t i = rank; i-- > 1;) strides[i - 1] = strides[i] * a.shape[i];
  for (std::size_t i = 0; i < rank; ++i) {
    shape[i] = a.shape[static_cast<std::size_t>(order[i])];
    stride[i] = strides[static_cast<std::size_t>(order[i])];
  }
  return strided(a, shape, stride);
}

Array transpose(const Array& a) {
  std::vector<int> order(a.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return permute(a, order);
}

Array matmul(const Array& a, const Array& b) {
  const Index m = a.size(-2), k = a.size(-1), n = b.size(-1), batch = a.count() / std::max<Index>(m * k, 1);
  need(b.size(-2) == k && (b.rank() == 2 || b.count() == batch * k * n));
  Shape shape = a.shape;
  shape.back() = n;
  Array out(shape);
  for (Index i = 0; i < out.count(); ++i) {
    const Index row = i / n, matrix = b.rank() == 2 ? 0 : row / m * k * n;
    out[i] = dot(a.data.data() + row * k, 1, b.data.data() + matrix + i % n, n, k);
  }
  return out;
}

Array linear(const Array& x, const Array& weight, const Array& bias) {
  Array out = matmul(x.rank() == 1 ? reshape(x, {1, x.count()}) : x, weight);
  return bias.data.empty() ? out : out + bias;
}

Array softmax(const Array& a, int axis, bool subtract_maximum) {
  Array out = a;
  const Around at(a.shape, axis_of(a, axis));
  for (Index i = 0; i < at.outer * at.inner; ++i) {
    const auto element = [&, begin = at.begin(i)](Index j) -> Number& { return out[begin + j * at.inner]; };
    Number largest(-std::numeric_limits<double>::infinity());
    for (Index j = 0; j < at.n; ++j) largest = max(largest, element(j));
    double total = 0, error = 0;
    for (Index j = 0; j < at.n; ++j) {
      // The maximum leaves the quotient: its own rounding does not count.
      element(j) = exp(subtract_maximum ? element(j) - Number(largest.value) : element(j));
      total += element(j).value;
      error += element(j).error;
    }
    for (Index j = 0; j < at.n; ++j) element(j) = element(j) / Number(total, error + static_cast<double>(at.n) * total);
  }
  return out;
}

Array sum(const Array& a, int axis) {
  const Around at(a.shape, axis_of(a, axis));
  Shape shape = a.shape;
  shape[axis_of(a, axis)] = 1;
  Array out(shape);
  const Number one(1);
  for (Index i = 0; i < out.count(); ++i) out[i] = dot(a.data.data() + at.begin(i), at.inner, &one, 0, at.n);
  return out;
}

Array mean(const Array& a, int axis) { return sum(a, axis) * Number(1.0 / static_cast<double>(a.size(axis))); }

double largest(const Array& a) {
  double found = 0;
  for (const Number& one : a.data) found = std::max(found, std::fabs(one.value));
  return found;
}

Array past(Array a, double future) {
  const Index length = a.size(-1);
  for (Index n = 0; n < a.count(); ++n) {
    if (n % length > n / length % length) a[n] = future;
  }
  return a;
}

Shape joint(const Shape& a, const Shape& b) {
  const Shape& more = a.size() < b.size() ? b : a;
  const Shape& less = a.size() < b.size() ? a : b;
  Shape out = more;
  const std::size_t missing = more.size() - less.size();
  for (std::size_t i = 0; i < less.size(); ++i) {
    Index& size = out[i + missing];
    need(size == less[i] || size == 1 || less[i] == 1);
    if (size == 1) size = less[i];
  }
  return out;
}

Array broadcast(const Array& a, const Shape& shape) {
  if (a.shape == shape) return a;
  need(!a.data.empty() || !a.shape.empty());
  const std::size_t missing = shape.size() - a.shape.size();
  std::vector<Index> stride(shape.size(), 0);
  Index step = 1;
  for (std::size_t i = a.shape.size(); i-- > 0; step *= a.shape[i]) stride[i + missing] = a.shape[i] == 1 ? 0 : step;
  return strided(a, shape, stride);
}

Array slice(const Array& a, int axis, Index begin, Index end) {
  need(0 <= begin && begin <= end && end <= a.size(axis));
  std::vector<Index> from(static_cast<std::size_t>(end - begin));
  std::iota(from.begin(), from.end(), begin);
  return take(a, axis, from);
}

Array concat(const std::vector<Array>& parts, int axis) {
  const std::size_t where = axis_of(parts.front(), axis);
  Shape shape = parts.front().shape;
  shape[where] = 0;
  for (const Array& part : parts) shape[where] += part.shape[where];
  Array out(shape);
  const Around whole(shape, where);
  Index begin = 0;
  for (const Array& part : parts) {
    const Index n = part.shape[where] * whole.inner;
    for (Index o = 0; o < whole.outer; ++o)
      std::copy_n(part.data.begin() + o * n, n, out.data.begin() + o * whole.n * whole.inner + begin);
    begin += n;
  }
  return out;
}

Array take(const Array& a, int axis, const std::vector<Index>& from) {
  const std::size_t where = axis_of(a, axis);
  const Around at(a.shape, where);
  need(std::ranges::all_of(from, [&](Index j) { return 0 <= j && j < at.n; }));
  Shape shape = a.shape;
  shape[where] = static_cast<Index>(from.size());
  Array out(shape);
  auto next = out.data.begin();
  for (Index o = 0; o < at.outer; ++o) {
    for (const Index j : from) next = std::copy_n(a.data.begin() + (o * at.n + j) * at.inner, at.inner, next);
  }
  return out;
}

Array split_heads(const Array& x, Index heads) {
  need(heads > 0);
  return permute(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}

Array merge_heads(const Array& x) {
  return reshape(permute(x, {0, 2, 1, 3}), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

Array weight_gradient(const Array& x, const Array& dy) {
  const auto flat = [](const Array& a) { return reshape(a, {a.count() / a.size(-1), a.size(-1)}); };
  return matmul(transpose(flat(x)), flat(dy));
}

}  // namespace qkv::judge
