// One token of one head, as a model generates: the state is read twice and written once, where chunks (forward.h)
// copy it several times. Not normalised.
//   u = v, or beta (v - decay S^T phi(k));  S' = decay S + phi(k) u^T;  out = S'^T phi(q)
// A decay per channel multiplies the rows of S, and phi(k) before it reads S.
#pragma once

#include "kernels/linear_attention/channels.h"

namespace qkv {
namespace {

/// Vectors of a block of columns: sums, u and out stay in registers.
constexpr int kStepVectors = 4;

/// to[v] = sum_d x[d] * state[d, v], kV vectors, of the last one `lanes`.
template <class T, int kV> inline __attribute__((always_inline)) void step_sums(
    const T* x, const T* state, Index row, Index count, int lanes, typename Simd<T>::V (&to)[kV]) {
  constexpr int n = Simd<T>::kLanes;
  for (int v = 0; v < kV; ++v) to[v] = typename Simd<T>::V{};
  for (Index d = 0; d < count; ++d, state += row) {
    const auto factor = splat<T>(x[d]);
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) to[v] = fma(factor, load_lanes(state + v * n, v + 1 < kV ? n : lanes), to[v]);
  }
}

/// phi(k), the group's phi(q), phi(k) as it reads the state before (decayed by channel), the decay of each channel or
/// of all.
template <class T> struct StepRows {
  const T *kf, *qf, *reads, *decay;
};

/// Columns [e, e + kV vectors) of the token; `lanes` of the last vector.
template <class T, int kV>
inline void step_columns(const LinearAttentionStep<T>& s, const StepRows<T>& rows, Index e, int lanes) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const auto live = [&](int v) { return v + 1 < kV ? n : lanes; };
  const LinearAttentionSegment<T>& t = s.token;
  const Index F = t.features.count;
  const T *const kf = rows.kf, *const qf = rows.qf, *decay = rows.decay;
  V u[kV], sum[kV];
  for (int v = 0; v < kV; ++v) u[v] = load_lanes(t.v.data + e + v * n, live(v));
  if (t.beta.data != nullptr) {
    step_sums<T, kV>(rows.reads, s.before + e, s.before_row, F, lanes, sum);
    const T left = t.channels ? T{1} : *decay;
    for (int v = 0; v < kV; ++v) u[v] = (u[v] - sum[v] * left) * *t.beta.data;
  }
  for (int v = 0; v < kV; ++v) sum[v] = V{};
  const T* from = s.before + e;
  T* to = s.after + e;
  for (Index d = 0; d < F; ++d, from += s.before_row, to += s.after_row, decay += t.channels) {
    const V k = splat<T>(kf[d]), q = splat<T>(qf[d]), left = splat<T>(*decay);
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const V state = fma(k, u[v], load_lanes(from + v * n, live(v)) * left);
      store_lanes(to + v * n, state, live(v));
      sum[v] = fma(q, state, sum[v]);
    }
  }
  for (int v = 0; v < kV; ++v) store_lanes(t.out.data + e + v * n, sum[v], live(v));
  for (Index head = 1; head < t.group_size; ++head) {
    step_sums<T, kV>(qf + head * F, s.after + e, s.after_row, F, lanes, sum);
    for (int v = 0; v < kV; ++v) store_lanes(t.out.at(head, 0) + e + v * n, sum[v], live(v));
  }
}

/// scratch: phi(k), the group's phi(q), decays, phi(k) decayed: [3 + group][F].
template <class T> void linear_attention_step(const LinearAttentionStep<T>& s, void* scratch) {
  constexpr int n = Simd<T>::kLanes;
  const LinearAttentionSegment<T>& t = s.token;
  const Index F = t.features.count;
  T *const kf = static_cast<T*>(scratch), *const qf = kf + F;
  feature_rows(t.features, t.k.data, t.k.stride, 1, T{1}, kf);
  feature_rows(t.features, t.q.data, t.q.head_stride, t.group_size, t.features.query_scale, qf);
  T *const decay = qf + t.group_size * F, *const reads = decay + F;
  if (t.channels) {
    for_vectors<T>(F, [&](Index e, int lanes) {
      store_lanes(decay + e, exp_of_sum<T>(load_lanes(t.log_decay.data + e, lanes), typename Simd<T>::V{}), lanes);
    });
    multiply_rows(kf, decay, F, reads);
  } else {
    ExactSum<T> sum;
    if (t.log_decay.data != nullptr) sum.add(*t.log_decay.data);
    *decay = exp_of_one(sum);
  }
  const StepRows<T> rows{kf, qf, t.channels ? reads : kf, decay};
  Index e = 0;
  for (; e + kStepVectors * n <= t.v_head_dim; e += kStepVectors * n) {
    step_columns<T, kStepVectors>(s, rows, e, n);
  }
  for (; e < t.v_head_dim; e += n) {
    step_columns<T, 1>(s, rows, e, static_cast<int>(smaller<Index>(n, t.v_head_dim - e)));
  }
}

/// A state whose columns lie in rows, or back.
template <class T>
void linear_attention_turn(const T* from, Index from_row, Index rows, Index columns, T* to, Index to_row) {
  pack_transposed<T>(from, from_row, rows, columns, T{1}, to, to_row);
}

}  // namespace
}  // namespace qkv
