// GELU, y = x Phi(x), Phi the normal distribution function, and its derivative (Hendrycks and Gimpel 2016). The tail
// Phi(-t) = e^(-t^2 / 2) R(t), t >= 0, has a relative error of (3 + t^2 / 2) eps, so y = max(x, 0) - t Phi(-t) is right
// to its last bits on both sides, where 1 + erf loses all of them far below 0.
#pragma once

#include <numbers>

#include "kernels/layers/params.h"
#include "simd/exp2.h"

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

/// y = x Phi(x), or dy (Phi(x) + x phi(x)) where there is dy.
inline void gelu(const GeluRows& rows) {
  using V = Simd<float>::V;
  for (Index m = 0; m < rows.rows; ++m) {
    const float *x = rows.x + m * rows.x_stride, *dy = rows.dy == nullptr ? nullptr : rows.dy + m * rows.dy_stride;
    float* y = rows.y + m * rows.y_stride;
    for_vectors<float>(
        rows.columns, [&](Index e, int lanes) __attribute__((always_inline)) {
          const V value = load_lanes(x + e, lanes);
          const NormalTail normal(value);
          if (dy == nullptr) {
            store_lanes(y + e, fma(-normal.t, normal.tail, value > 0 ? value : V{}), lanes);
          } else {
            const V distribution = value > 0 ? 1.0f - normal.tail : normal.tail;
            store_lanes(y + e, load_lanes(dy + e, lanes) * fma(value, normal.density, distribution), lanes);
          }
        });
  }
}

}  // namespace
}  // namespace qkv
