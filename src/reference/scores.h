// One score of the textbook with its parts, as every derivative asks for them. Not: softmax, sums over keys (attention.cc).
#pragma once

#include <cmath>
#include <limits>

#include "reference/attention.h"

namespace qkv {
inline namespace v0 {
namespace reference {

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T kNotANumber = std::numeric_limits<T>::quiet_NaN();

/// sum_n x[b,h,i,n] * y[b,g,j,n]
template <class T>
T dot(const View<const T, 4>& x, Index b, Index h, Index i, const View<const T, 4>& y, Index g, Index j) {
  T sum = 0;
  for (Index n = 0; n < x.size(3); ++n) sum += x(b, h, i, n) * y(b, g, j, n);
  return sum;
}

/// What all directions share: the shapes, and one score with the derivative of its soft cap.
template <class T>
struct Scores {
  View<const T, 4> q;  // [B, H, Tq, D]
  View<const T, 4> k;  // [B, Hkv, Tk, D]
  const Options<T>& options;

  T scale = options.scale ? static_cast<T>(*options.scale) : T(1) / std::sqrt(static_cast<T>(q.size(3)));
  T cap = static_cast<T>(options.softcap);
  Index group_size = k.size(1) > 0 ? q.size(1) / k.size(1) : 1;  // query heads that read one key/value head

  T bias(Index b, Index h, Index i, Index j) const {
    const auto& view = options.bias;
    if (view.is_null()) return 0;
    return view(view.size(0) > 1 ? b : 0, view.size(1) > 1 ? h : 0, view.size(2) > 1 ? i : 0, view.size(3) > 1 ? j : 0);
  }

  bool keep(Index b, Index h, Index i, Index j) const {
    return (!options.keep || options.keep(b, h, i, j)) && bias(b, h, i, j) != -kInfinity<T>;
  }

  T factor(Index b, Index h, Index i, Index j) const {
    return options.factor ? static_cast<T>(options.factor(b, h, i, j)) : T(1);
  }

  /// x[i,j] = scale * q[i].k[j]
  T product(Index b, Index h, Index i, Index j) const { return scale * dot(q, b, h, i, k, h / group_size, j); }

  /// s[i,j] = softcap(x) + bias[i,j], softcap(x) = c * tanh(x / c)
  T score(Index b, Index h, Index i, Index j) const {
    const T x = product(b, h, i, j);
    return (cap > 0 ? cap * std::tanh(x / cap) : x) + bias(b, h, i, j);
  }

  /// d softcap(x) / dx = 1 - tanh(x / c)^2
  T softcap_slope(Index b, Index h, Index i, Index j) const {
    if (!(cap > 0)) return 1;
    const T tanh = std::tanh(product(b, h, i, j) / cap);
    return 1 - tanh * tanh;
  }
};

}  // namespace reference
}  // namespace v0
}  // namespace qkv
