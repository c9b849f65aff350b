// SiLU, and GELU: y = x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016), with their
// derivatives. The tail Phi(-t) = e^(-t^2 / 2) R(t), t >= 0, has a relative error of (3 + t^2 / 2) eps, and y is
// max(x, 0) - t Phi(-t): within 6 ulp near 0 and one above, where 1 + erf loses all bits far below 0.
#pragma once

#include <numbers>

#include "kernels/layers/params.h"
#include "simd/exp2.h"
#include "simd/sigmoid.h"

namespace qkv {
namespace {

/// Of x, with t = |x|: Phi(-t), and the density e^(-t^2 / 2) / sqrt(2 pi).
struct NormalTail {
  using V = Simd<float>::V;
  V t, tail, density;

  explicit NormalTail(V x) {
    // R(t) = u p(u), u = 1 / (1 + kA t), fitted on [0, 13.5]: relative error 9.4e-8. Beyond, e^(-t^2 / 2) is 0.
    constexpr float kA = 0.305f, kFarthest = 16.0f;
    constexpr float kP[] = {
        0.03669925f, -0.15298855f, 0.18571728f, -0.03797716f, 0.12102184f, 0.10342082f, 0.12246682f, 0.12163973f};
    t = x < 0 ? -x : x;
    t = t > kFarthest ? splat<float>(kFarthest) : t;
    const V u = 1.0f / fma(splat<float>(kA), t, splat<float>(1.0f));
    V p = splat<float>(kP[0]);
#pragma GCC unroll 8
    for (std::size_t k = 1; k < sizeof kP / sizeof kP[0]; ++k) p = fma(p, u, splat<float>(kP[k]));
    const V e = exp2<float>(t * t * (-0.5f * std::numbers::log2e_v<float>));
    tail = e * (u * p);
    density = e * (std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>);
  }
};

struct Gelu {
  static NormalTail::V value(NormalTail::V x) {
    const NormalTail normal(x);
    return fma(-normal.t, normal.tail, x > 0 ? x : NormalTail::V{});
  }
  static NormalTail::V slope(NormalTail::V x) {
    const NormalTail normal(x);
    const auto near = x > 0 ? normal.t : -normal.t;  // times a density, which is 0 beyond
    return fma(near, normal.density, x > 0 ? 1.0f - normal.tail : normal.tail);
  }
};
struct Silu {
  static NormalTail::V value(NormalTail::V x) { return silu<float>(x); }
  static NormalTail::V slope(NormalTail::V x) { return silu_slope<float>(x); }
};

/// y = f(x), or dy f'(x) where there is dy.
template <class F> inline void activate(const ActivationRows& rows) {
  for (Index m = 0; m < rows.rows; ++m) {
    const float *x = rows.x + m * rows.x_stride, *dy = rows.dy == nullptr ? nullptr : rows.dy + m * rows.dy_stride;
    float* y = rows.y + m * rows.y_stride;
    for_vectors<float>(rows.columns, [&](Index e, int lanes) {
      const auto value = load_lanes(x + e, lanes);
      const auto made = dy == nullptr ? F::value(value) : load_lanes(dy + e, lanes) * F::slope(value);
      store_lanes(y + e, made, lanes);
    });
  }
}

}  // namespace
}  // namespace qkv
