// One token of one head, as a model generates: the state is read twice and written once, where chunks (forward.h) copy it several
// times. Not normalised. Not: which calls take this way (attention/linear/forward.cc).
//   u = v, or beta (v - decay S^T phi(k));  S' = decay S + phi(k) u^T;  out = S'^T phi(q)
#pragma once

#include "kernels/linear_attention/chunk.h"

namespace qkv {
namespace {

/// Vectors of a block of columns: sums, u and out stay in registers.
constexpr int kStepVectors = 4;

/// to[v] = sum_d x[d] * state[d, v], kV vectors, of the last one `lanes`.
template <class T, int kV>
inline __attribute__((always_inline)) void step_sums(const T* x, const T* state, Index row, Index count, int lanes,
                                                     typename Simd<T>::V (&to)[kV]) {
  constexpr int n = Simd<T>::kLanes;
  for (int v = 0; v < kV; ++v) to[v] = typename Simd<T>::V{};
  for (Index d = 0; d < count; ++d, state += row) {
    const auto factor = splat<T>(x[d]);
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) to[v] = fma(factor, load_lanes(state + v * n, v + 1 < kV ? n : lanes), to[v]);
  }
}

/// Columns [e, e + kV vectors) of the token; `lanes` of the last vector.
template <class T, int kV>
inline void step_columns(const LinearAttentionStep<T>& s, const T* kf, const T* qf, T decay, Index e, int lanes) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const auto live = [&](int v) { return v + 1 < kV ? n : lanes; };
  const LinearAttentionSegment<T>& t = s.token;
  const Index F = t.features.count;
  V u[kV], sum[kV];
  for (int v = 0; v < kV; ++v) u[v] = load_lanes(t.v + e + v * n, live(v));
  if (t.beta != nullptr) {
    step_sums<T, kV>(kf, s.before + e, s.before_row, F, lanes, sum);
    for (int v = 0; v < kV; ++v) u[v] = (u[v] - sum[v] * decay) * *t.beta;
  }
  for (int v = 0; v < kV; ++v) sum[v] = V{};
  const T* from = s.before + e;
  T* to = s.after + e;
  for (Index d = 0; d < F; ++d, from += s.before_row, to += s.after_row) {
    const V k = splat<T>(kf[d]), q = splat<T>(qf[d]), left = splat<T>(decay);
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const V state = fma(k, u[v], load_lanes(from + v * n, live(v)) * left);
      store_lanes(to + v * n, state, live(v));
      sum[v] = fma(q, state, sum[v]);
    }
  }
  for (int v = 0; v < kV; ++v) store_lanes(t.out + e + v * n, sum[v], live(v));
  for (Index head = 1; head < t.group_size; ++head) {
    step_sums<T, kV>(qf + head * F, s.after + e, s.after_row, F, lanes, sum);
    for (int v = 0; v < kV; ++v) store_lanes(t.out + head * t.out_head_stride + e + v * n, sum[v], live(v));
  }
}

/// scratch: phi(k) and the group's phi(q), [1 + group][F].
template <class T>
void linear_attention_step(const LinearAttentionStep<T>& s, void* scratch) {
  constexpr int n = Simd<T>::kLanes;
  const LinearAttentionSegment<T>& t = s.token;
  const Index F = t.features.count;
  T *const kf = static_cast<T*>(scratch), *const qf = kf + F;
  feature_rows(t.features, t.k, t.k_stride, 1, T{1}, kf);
  feature_rows(t.features, t.q, t.q_head_stride, t.group_size, t.features.query_scale, qf);
  ExactSum<T> sum;
  if (t.log_decay != nullptr) sum.add(*t.log_decay);
  const T decay = exp_of_one(sum);
  Index e = 0;
  for (; e + kStepVectors * n <= t.v_head_dim; e += kStepVectors * n) {
    step_columns<T, kStepVectors>(s, kf, qf, decay, e, n);
  }
  for (; e < t.v_head_dim; e += n) {
    step_columns<T, 1>(s, kf, qf, decay, e, static_cast<int>(smaller<Index>(n, t.v_head_dim - e)));
  }
}

}  // namespace
}  // namespace qkv
