// One score of the textbook form and its parts, for every derivative.
#pragma once

#include <cmath>
#include <limits>

#include "reference/attention.h"

namespace qkv::inline v0::reference {

template <class T> inline constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T> inline constexpr T kNotANumber = std::numeric_limits<T>::quiet_NaN();

/// sum_n x[b,h,i,n] * y[b,g,j,n]
template <class T>
T dot(const View<const T, 4>& x, Index b, Index h, Index i, const View<const T, 4>& y, Index g, Index j) {
  T sum = 0;
  for (Index n = 0; n < x.size(3); ++n) sum += x(b, h, i, n) * y(b, g, j, n);
  return sum;
}

/// Shared by all directions: the shapes, and one score with the derivatives of its softcap and of its modifier.
template <class T> struct Scores {
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

  T position(Index h, Index i, Index j) const {
    if (options.position_table.is_null()) return 0;
    return static_cast<T>(options.position_factor(i, j)) * options.position_table(options.position_row(i, j), h);
  }

  bool keep(Index b, Index h, Index i, Index j) const {
    if (options.keep && !options.keep(b, h, i, j)) return false;
    if (bias(b, h, i, j) + position(h, i, j) == -kInfinity<T>) return false;
    return !options.score_mod || score(b, h, i, j) != -kInfinity<T>;
  }

  T sink(Index h) const { return options.sinks.is_null() ? -kInfinity<T> : options.sinks(h); }

  T factor(Index b, Index h, Index i, Index j) const {
    return options.factor ? static_cast<T>(options.factor(b, h, i, j)) : T(1);
  }

  /// x[i,j] = scale * q[i].k[j]
  T product(Index b, Index h, Index i, Index j) const { return scale * dot(q, b, h, i, k, h / group_size, j); }

  /// y[i,j] = softcap(x) + bias[i,j] + position[h,i,j], softcap(x) = c * tanh(x / c)
  T unmodified(Index b, Index h, Index i, Index j) const {
    const T x = product(b, h, i, j);
    return (cap > 0 ? cap * std::tanh(x / cap) : x) + bias(b, h, i, j) + position(h, i, j);
  }

  /// s[i,j] = mod(y)
  T score(Index b, Index h, Index i, Index j) const {
    const T y = unmodified(b, h, i, j);
    return options.score_mod ? options.score_mod(y, b, h, i, j) : y;
  }

  /// d mod(y) / dy
  T mod_slope(Index b, Index h, Index i, Index j) const {
    return options.score_mod ? options.score_mod_slope(unmodified(b, h, i, j), b, h, i, j) : T(1);
  }

  /// d softcap(x) / dx = 1 - tanh(x / c)^2
  T softcap_slope(Index b, Index h, Index i, Index j) const {
    if (!(cap > 0)) return 1;
    const T tanh = std::tanh(product(b, h, i, j) / cap);
    return 1 - tanh * tanh;
  }
};

}  // namespace qkv::inline v0::reference
