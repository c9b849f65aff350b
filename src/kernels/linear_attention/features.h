// phi and its gradient, row by row (LinearAttentionFeatures). Choromanski 2021 (2009.14794), lemma 1: the positive
// random features of softmax.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/linear_attention/params.h"
#include "kernels/products/gemm.h"
#include "simd/exp2.h"

namespace qkv {
namespace {

/// factor * 2^y for any y: infinity and 0 beyond the type's ends, NaN for NaN.
template <class T> inline typename Simd<T>::V times_exp2(typename Simd<T>::V y, typename Simd<T>::V factor) {
  using V = typename Simd<T>::V;
  constexpr bool is_float = sizeof(T) == 4;
  constexpr T most = is_float ? T{120} : T{1000},
              step = is_float ? T{64} : T{512};                     // exp2 wants y far from 128 and 1024
  constexpr T power = static_cast<T>(is_float ? 0x1p64 : 0x1p512);  // 2^step
  V near = y > most ? y - step : y;
  near = near > most ? splat<T>(most) : near;
  return exp2<T>(near) * factor * (y > most ? splat<T>(power) : splat<T>(1));
}

/// e^x. The product x log2(e) is rounded, which moves a power of a large x by eps |x|.
template <class T> inline typename Simd<T>::V exp_of(typename Simd<T>::V x) {
  return times_exp2<T>(x * std::numbers::log2e_v<T>, splat<T>(1));
}

/// e^(x + low), |low| below eps |x|, within 4 eps however large x is: x = n ln 2 + r, where n times the upper part of
/// ln 2 has few enough bits to be exact (Cody and Waite 1980), so that r is what rounding leaves of it at |r| < 1/2.
/// Where x is not finite, low is anything.
template <class T> [[gnu::noinline]] typename Simd<T>::V exp_of_sum(typename Simd<T>::V x, typename Simd<T>::V low) {
  using V = typename Simd<T>::V;
  constexpr bool is_float = sizeof(T) == 4;
  constexpr T upper = static_cast<T>(is_float ? 0x1.63p-1 : 0x1.62e42fee00000p-1);  // 9 and 32 bits of ln 2
  constexpr T lower = static_cast<T>(is_float ? -0x1.bd0105c610ca8p-13 : 0x1.a39ef35793c76p-33);
  constexpr T far = is_float ? T{1000} : T{4000};                                  // 0 or infinity
  constexpr T magic = static_cast<T>(is_float ? 12582912.0 : 6755399441055744.0);  // 1.5 * 2^23, 2^52: rounds
  const V near = x > far ? splat<T>(far) : x < -far ? splat<T>(-far) : x;
  const V n = (near * std::numbers::log2e_v<T> + magic) - magic;
  const V r = ((near - n * upper) - n * lower) + (low == low ? low : V{});
  return times_exp2<T>(n, exp2<T>(r * std::numbers::log2e_v<T>));
}

/// A compensated sum: high is the sum in T, low what its roundings lost (Knuth's two-sum). Where terms are not finite,
/// low is undefined.
template <class T> struct ExactSum {
  T high = 0, low = 0;

  void add(T x) {
    const T sum = high + x, shared = sum - high;
    low += (high - (sum - shared)) + (x - shared);
    high = sum;
  }
  void add(const ExactSum& more) {
    add(more.high);
    low += more.low;
  }
};

/// a[r, d] at data[r * row + d * depth], as products read it; rows of b and c.
template <class T> struct Factor {
  const T* data;
  Index row, depth;
};
template <class T> struct FactorRows {
  T* data;
  Index row;
};
/// c[r, :] (op) sum_d a[r, d] b[d, :]
template <Store kStore, class T> [[gnu::always_inline]] inline void multiply(const Factor<T>& a,
    const FactorRows<const T>& b, const FactorRows<T>& c, Index depth, Index rows, Index columns,
    Ahead* ahead = nullptr) {
  product<T, kStore>({.a = a.data,
                         .a_row = a.row,
                         .a_depth = a.depth,
                         .b = b.data,
                         .b_row = b.row,
                         .c = c.data,
                         .c_row = c.row,
                         .depth = depth,
                         .ahead = ahead},
      rows, columns);
}

template <class T> inline T sum_lanes(typename Simd<T>::V v, T sum = 0) {
  T lane[Simd<T>::kLanes];
  store<T>(lane, v);
  for (const T x : lane) sum += x;
  return sum;
}

/// Sums along a row, lane by lane: one vector or, with invariant bits, as many as 64 bytes hold.
template <class T> class LaneSums {
  static constexpr Index n = Simd<T>::kLanes, kWidest = 64 / Index{sizeof(T)} / n;

 public:
  explicit LaneSums(bool invariant) : parts_(invariant ? kWidest : 1) {}
  /// Of the vector that begins at element e of the row, a whole number of vectors from its start.
  typename Simd<T>::V& at(Index e) { return sum_[e / n & (parts_ - 1)]; }
  /// Lane after lane.
  T total() const {
    T sum = 0;
    for (Index part = 0; part < parts_; ++part) sum = sum_lanes<T>(sum_[part], sum);
    return sum;
  }

 private:
  typename Simd<T>::V sum_[kWidest]{};
  Index parts_;
};

/// sum_d a[d] * b[d]
template <class T> [[gnu::noinline]] T dot_wide_rows(const T* a, const T* b, Index width) {
  LaneSums<T> sums(true);
  for_vectors<T>(width, [&](Index e, int lanes) {
    auto& sum = sums.at(e);
    sum = fma(load_lanes(a + e, lanes), load_lanes(b + e, lanes), sum);
  });
  return sums.total();
}
template <class T> inline T dot_rows(const T* a, const T* b, Index width, bool invariant) {
  if (invariant && QKV_VECTOR_BYTES < 64) return dot_wide_rows(a, b, width);
  typename Simd<T>::V sum{};
  for_vectors<T>(
      width, [&](Index e, int lanes) { sum = fma(load_lanes(a + e, lanes), load_lanes(b + e, lanes), sum); });
  return sum_lanes<T>(sum);
}

/// row[d] *= factor
template <class T> [[gnu::noinline]] void scale_row(T* row, Index width, T factor) {
  for_vectors<T>(width, [&](Index e, int lanes) { store_lanes(row + e, load_lanes(row + e, lanes) * factor, lanes); });
}

/// One vector of phi, for elementwise maps.
template <int kMap, class T> inline typename Simd<T>::V map_vector(typename Simd<T>::V x) {
  using V = typename Simd<T>::V;
  if constexpr (kMap == kLinearRelu) return x < V{} ? V{} : x;  // NaN stays
  if constexpr (kMap == kLinearEluPlusOne) {
    const V low = x > V{} ? V{} : x;
    const V power = exp2<T>(low * std::numbers::log2e_v<T>);
    return x > V{} ? x + T{1} : power;
  }
  return x;
}

/// Four vectors at a time: 2^y is a chain of a dozen dependent steps.
template <int kMap, class T> inline void map_rows(const T* x, Index x_stride, Index rows, Index width, T scale, T* to) {
  constexpr int n = Simd<T>::kLanes;
  for (Index r = 0; r < rows; ++r, x += x_stride, to += width) {
    Index e = 0;
    for (; e + 4 * n <= width; e += 4 * n) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) store<T>(to + e + v * n, map_vector<kMap, T>(load<T>(x + e + v * n)) * scale);
    }
    for (; e < width; e += n) {
      const int lanes = static_cast<int>(smaller<Index>(n, width - e));
      store_lanes(to + e, map_vector<kMap, T>(load_lanes(x + e, lanes)) * scale, lanes);
    }
  }
}

/// 1 / sqrt(|x|^2 + 1e-6)
template <class T> inline T unit_factor(const T* x, Index width, bool invariant) {
  return T{1} / std::sqrt(dot_rows(x, x, width, invariant) + static_cast<T>(1e-6));
}

/// to[r, :] = scale * phi(x[r, :]), rows of `to` follow each other.
template <class T>
inline void feature_rows(const LinearAttentionFeatures<T>& f, const T* x, Index x_stride, Index rows, T scale, T* to) {
  if (f.map == kLinearIdentity) return map_rows<kLinearIdentity>(x, x_stride, rows, f.count, scale, to);
  if (f.map == kLinearRelu) return map_rows<kLinearRelu>(x, x_stride, rows, f.count, scale, to);
  if (f.map == kLinearEluPlusOne) return map_rows<kLinearEluPlusOne>(x, x_stride, rows, f.count, scale, to);
  if (f.map == kLinearUnit) {
    for (Index r = 0; r < rows; ++r, x += x_stride, to += f.count) {
      const T factor = scale * unit_factor(x, f.count, f.invariant);
      for_vectors<T>(
          f.count, [&](Index e, int lanes) { store_lanes(to + e, load_lanes(x + e, lanes) * factor, lanes); });
    }
    return;
  }
  // to[r, m] = sum_d x[r, d] * rows[m, d]
  multiply<Store::kSet, T>({x, x_stride, 1}, {f.rows_transposed, f.count}, {to, f.count}, f.head_dim, rows, f.count);
  for (Index r = 0; r < rows; ++r, x += x_stride, to += f.count) {
    const T shift = f.half_norm * dot_rows(x, x, f.head_dim, f.invariant) + f.log_root;
    for_vectors<T>(f.count,
        [&](Index e, int lanes) { store_lanes(to + e, exp_of<T>(load_lanes(to + e, lanes) - shift) * scale, lanes); });
  }
}

/// dx[r, :] (+)= the gradient with respect to x of phi = feature_rows(x), given dphi, which is overwritten.
template <class T> inline void feature_rows_backward(const LinearAttentionFeatures<T>& f, const T* x, Index x_stride,
    Index rows, T scale, const T* phi, T* dphi, T* dx, Index dx_stride, bool add) {
  using V = typename Simd<T>::V;
  for (Index r = 0; r < rows; ++r) {
    const T *row = x + r * x_stride, *value = phi + r * f.count;
    T *gradient = dphi + r * f.count, *to = dx + r * dx_stride;
    if (f.map == kLinearSoftmax) {
      // d phi[m] / dx = phi[m] * (rows[m, :] - 2 half_norm x)
      LaneSums<T> sums(f.invariant);
      for_vectors<T>(f.count, [&](Index e, int lanes) {
        const V g = load_lanes(gradient + e, lanes) * load_lanes(value + e, lanes);
        sums.at(e) += g;
        store_lanes(gradient + e, g, lanes);
      });
      const V factor = splat<T>(-2 * f.half_norm * sums.total());
      for_vectors<T>(f.head_dim, [&](Index e, int lanes) {
        const V before = add ? load_lanes(to + e, lanes) : V{};
        store_lanes(to + e, fma(factor, load_lanes(row + e, lanes), before), lanes);
      });
      continue;
    }
    // kLinearUnit: dx = factor scale dphi - factor^2 (phi.dphi) x
    const bool unit = f.map == kLinearUnit;
    const T factor = unit ? unit_factor(row, f.count, f.invariant) : T{1};
    const V along = splat<T>(unit ? -factor * factor * dot_rows(value, gradient, f.count, f.invariant) : T{0});
    for_vectors<T>(f.count, [&](Index e, int lanes) {
      const V at = load_lanes(row + e, lanes);
      V slope = splat<T>(scale * factor);
      if (f.map == kLinearRelu) slope = at > V{} ? slope : V{};
      if (f.map == kLinearEluPlusOne) slope = at > V{} ? slope : load_lanes(value + e, lanes);
      V g = slope * load_lanes(gradient + e, lanes);
      if (unit) g = fma(along, at, g);
      store_lanes(to + e, add ? load_lanes(to + e, lanes) + g : g, lanes);
    });
  }
  if (f.map != kLinearSoftmax) return;
  // dx[r, d] += sum_m g[r, m] * rows[m, d]
  multiply<Store::kAdd, T>({dphi, f.count, 1}, {f.rows, f.head_dim}, {dx, dx_stride}, f.count, rows, f.head_dim);
}

}  // namespace
}  // namespace qkv
