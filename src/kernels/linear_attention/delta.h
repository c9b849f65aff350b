// The delta rule within a chunk: u from v, by forward substitution, and back. Yang 2024 (2406.06484) writes the inverse
// of the triangular matrix out (WY, UT transform); solving it costs the same and needs no inverse.
//   u[i] = beta[i] * w[i],  w[i] = v[i] - into[i] S^T kf[i] - sum over j < i of decay(j, i) (kf[j].kf[i]) u[j]
#pragma once

#include "kernels/linear_attention/channels.h"

namespace qkv {
namespace {

/// to[:] += factor * from[:]
template <class T> [[gnu::noinline]] void add_row(T factor, const T* from, T* to, Index width) {
  for_vectors<T>(width, [&](Index e, int lanes) {
    store_lanes(to + e, fma(splat<T>(factor), load_lanes(from + e, lanes), load_lanes(to + e, lanes)), lanes);
  });
}

/// to[:] = factor * from[:]
template <class T> [[gnu::noinline]] void set_row(T factor, const T* from, T* to, Index width) {
  for_vectors<T>(width, [&](Index e, int lanes) { store_lanes(to + e, load_lanes(from + e, lanes) * factor, lanes); });
}

/// row[:] = from[:] - factor * row[:]
template <class T> [[gnu::noinline]] void set_difference(const T* from, T factor, T* row, Index width) {
  for_vectors<T>(width, [&](Index e, int lanes) {
    store_lanes(row + e, fma(splat<T>(-factor), load_lanes(row + e, lanes), load_lanes(from + e, lanes)), lanes);
  });
}

/// Rows that are solved one after the other: those of a block of the products or, with invariant bits, eight.
template <class T> inline Index delta_rows_at_once(const LinearAttentionSegment<T>& t) {
  return t.features.invariant ? 8 : kRows;
}

/// From residual, as far as it does not depend on the chunk's own u, and keys: residual (w above) and u.
template <class T> inline void substitute(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count) {
  const Index Dv = t.v_head_dim, step = delta_rows_at_once(t);
  for (Index i0 = 0; i0 < count; i0 += step) {
    const Index rows = smaller(step, count - i0);
    multiply<Store::kAdd, T>({w.keys + i0, 1, w.width}, {w.u, Dv}, {w.residual + i0 * Dv, Dv}, i0, rows, Dv);
    for (Index i = i0; i < i0 + rows; ++i) {
      const T beta = *t.beta.at(0, begin + i);
      for_vectors<T>(Dv, [&](Index e, int lanes) {
        auto left = load_lanes(w.residual + i * Dv + e, lanes);
        for (Index j = i0; j < i; ++j)
          left = fma(splat<T>(w.keys[j * w.width + i]), load_lanes(w.u + j * Dv + e, lanes), left);
        store_lanes(w.residual + i * Dv + e, left, lanes);
        store_lanes(w.u + i * Dv + e, left * beta, lanes);
      });
    }
  }
}

/// Fills keys, residual (w above) and u from kf and the state before the chunk. q_panel is used.
template <class T> inline void solve_delta(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, const T* state, Index begin, Index count) {
  const Index F = t.features.count, Dv = t.v_head_dim;
  const T* keys = w.kf;  // as they read the state
  if (t.channels) {
    pair_scores(w, w.kf, false, T{-1}, count, w.keys);
    multiply_rows(w.kf, w.intos, count * F, w.decayed);
    keys = w.decayed;
  } else {
    pack_transposed<T>(w.kf, F, count, F, T{1}, w.q_panel, w.width);
    triangle_scores(w.kf, F, w.q_panel, w.width, F, count, w.keys);
    mask_triangle<Triangle::kNegated>(t, w, count, w.keys);
  }
  rows_times<Store::kSet>(keys, F, F, state, Dv, w.residual, Dv, count, Dv, &w.ahead);
  for (Index i = 0; i < count; ++i) {
    const T left = t.channels || t.log_decay.data == nullptr ? T{1} : w.into[i];
    set_difference(t.v.at(0, begin + i), left, w.residual + i * Dv, Dv);
  }
  substitute(t, w, begin, count);
}

/// From du [count][Dv], the gradient of u, to that of v, in place; dw, the gradient of the residual w, is the same.
/// dbeta[i] (if not null) = du'[i].w[i], du' being du with what later tokens add.
template <class T> inline void solve_delta_backward(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count, T* du, T* dbeta) {
  const Index Dv = t.v_head_dim, step = delta_rows_at_once(t);
  for (Index i1 = count; i1 > 0;) {
    const Index i0 = (i1 - 1) / step * step;
    // u[j] enters w[i] of later tokens through keys[j, i]
    multiply<Store::kAdd, T>(
        {w.keys + i0 * w.width + i1, w.width, 1}, {du + i1 * Dv, Dv}, {du + i0 * Dv, Dv}, count - i1, i1 - i0, Dv);
    for (Index j = i1 - 1; j >= i0; --j) {
      T* row = du + j * Dv;
      for (Index i = j + 1; i < i1; ++i) add_row(w.keys[j * w.width + i], du + i * Dv, row, Dv);
      if (dbeta != nullptr) dbeta[j] = dot_rows(row, w.residual + j * Dv, Dv, t.features.invariant);
      scale_row(row, Dv, *t.beta.at(0, begin + j));
    }
    i1 = i0;
  }
}

}  // namespace
}  // namespace qkv
