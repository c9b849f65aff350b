// A causal depthwise convolution of few taps on rows of tokens (qkv/state_space.h), channels in lanes.
#pragma once

#include "kernels/linear_attention/features.h"
#include "kernels/linear_attention/scan_params.h"

namespace qkv {
namespace {

/// 1 / (1 + e^-x)
template <class T> inline typename Simd<T>::V sigmoid(typename Simd<T>::V x) {
  constexpr T most = sizeof(T) == 4 ? T{126} : T{1022};
  const auto y = x * -std::numbers::log2e_v<T>;
  return T{1} / (exp2<T>(y > most ? splat<T>(most) : y) + T{1});
}

template <class T> inline Index reach_of(const ConvolutionRows<T>& t, Index token) {
  return t.reach == nullptr ? t.width - 1 : t.reach[token];
}
/// The row of `token`, or of one before the first; null: zeros.
template <class T> inline const T* convolved_row(const ConvolutionRows<T>& t, Index token) {
  if (token >= 0) return t.x.at(token);
  return t.before.data == nullptr ? nullptr : t.before.at(t.width - 1 + token);
}

/// bias + sum_j weight[width - 1 - j] x[token - j], kV vectors from channel e on, of the last one `lanes`.
template <class T, int kV> inline __attribute__((always_inline)) void convolved(
    const ConvolutionRows<T>& t, Index token, Index reach, Index e, int lanes, typename Simd<T>::V (&z)[kV]) {
  constexpr int n = Simd<T>::kLanes;
  const auto live = [&](int v) { return v + 1 < kV ? n : lanes; };
  for (int v = 0; v < kV; ++v)
    z[v] = t.bias == nullptr ? typename Simd<T>::V{} : load_lanes(t.bias + e + v * n, live(v));
  for (Index j = reach; j >= 0; --j) {
    const T *row = convolved_row(t, token - j), *weight = t.weight.at(t.width - 1 - j) + e;
    if (row == nullptr) continue;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v)
      z[v] = fma(load_lanes(weight + v * n, live(v)), load_lanes(row + e + v * n, live(v)), z[v]);
  }
}

/// body.operator()<kV>(e, lanes) for a row's blocks of vectors.
template <class T, class Body> [[gnu::always_inline]] inline void for_row_blocks(Index channels, const Body& body) {
  constexpr int n = Simd<T>::kLanes;
  Index e = 0;
  for (; e + 4 * n <= channels; e += 4 * n) body.template operator()<4>(e, n);
  for (; e < channels; e += n) body.template operator()<1>(e, static_cast<int>(smaller<Index>(n, channels - e)));
}

template <class T> void convolve(const ConvolutionRows<T>& t) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index i = t.begin; i < t.end; ++i) {
    const Index reach = reach_of(t, i);
    T* const out = t.out.at(i);
    for_row_blocks<T>(t.channels, [&]<int kV>(Index e, int lanes) {
      V z[kV] = {};
      if (reach >= 0) convolved(t, i, reach, e, lanes, z);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        store_lanes(out + e + v * n, t.silu ? z[v] * sigmoid<T>(z[v]) : z[v], v + 1 < kV ? n : lanes);
      }
    });
  }
}

/// to[e ...] += factor * x, or = where `set`
template <class T>
inline void add_lanes(T* to, typename Simd<T>::V factor, typename Simd<T>::V x, int lanes, bool set) {
  store_lanes(to, set ? factor * x : fma(factor, x, load_lanes(to, lanes)), lanes);
}

template <class T> void convolve_backward(const ConvolutionGradient<T>& g) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ConvolutionRows<T>& t = g.forward;
  for (Index k = 0; k < t.width; ++k) {
    for (Index e = 0; e < t.channels; ++e) g.dweight.at(k)[e] = 0;
  }
  for (Index e = 0; e < t.channels; ++e) g.dbias[e] = 0;
  for (Index i = 0; i < t.end; ++i) {
    const Index reach = reach_of(t, i);
    for_row_blocks<T>(t.channels, [&]<int kV>(Index e, int lanes) {
      const auto live = [&](int v) { return v + 1 < kV ? n : lanes; };
      if (reach < 0) {
        for (int v = 0; v < kV && g.dx.data != nullptr; ++v) store_lanes(g.dx.at(i) + e + v * n, V{}, live(v));
        return;
      }
      V dz[kV], z[kV];
      if (t.silu) convolved(t, i, reach, e, lanes, z);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        dz[v] = load_lanes(g.dout.at(i) + e + v * n, live(v));
        if (t.silu) {
          const V s = sigmoid<T>(z[v]);
          dz[v] *= s * fma(z[v], T{1} - s, splat<T>(1));
        }
        T* const dbias = g.dbias + e + v * n;
        store_lanes(dbias, load_lanes(dbias, live(v)) + dz[v], live(v));
      }
      for (Index j = 0; j <= reach; ++j) {
        const T* const row = convolved_row(t, i - j);
        T *dweight = g.dweight.at(t.width - 1 - j) + e, *dx = nullptr;
        if (i >= j) {
          dx = g.dx.data == nullptr ? nullptr : g.dx.at(i - j);
        } else if (g.dbefore.data != nullptr) {
          dx = g.dbefore.at(t.width - 1 + i - j);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) {
          if (row != nullptr)
            add_lanes<T>(dweight + v * n, dz[v], load_lanes(row + e + v * n, live(v)), live(v), false);
          const T* const weight = t.weight.at(t.width - 1 - j) + e + v * n;
          if (dx != nullptr) add_lanes<T>(dx + e + v * n, dz[v], load_lanes(weight, live(v)), live(v), j == 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace qkv
