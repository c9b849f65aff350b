// Backward linear attention with a decay for each channel, chunks from last to first. With P of channels.h, D[j,i] =
// g[i].u[j] its gradient, and with the delta rule E[j,i] = -u[j].dw[i],
//   dqf[i] = into[i] (S g[i])              + sum_{j <= i} D[j,i] decay(j,i) kf[j]
//   dkf[j] = after[j] (dS u[j])            + sum_{i >= j} D[j,i] decay(j,i) qf[i]
//          - into[j] (S dw[j])             + sum_{i > j} E[j,i] decay(j,i) kf[i] + sum_{i < j} E[i,j] decay(i,j) kf[i]
//   dS'    = whole dS + sum_i (into[i] qf[i]) g[i]^T - sum_i (into[i] kf[i]) dw[i]^T
// and dlog_decay[t] sums all of it that crosses from before token t to t or beyond, channel by channel. (sum_{i >= t}
// of qf dqf - kf dkf is the same number, and loses it in rounding where the decay is strong.)
#pragma once

#include "kernels/linear_attention/backward.h"

namespace qkv {
namespace {

/// Adds the gradients of the pairs of a tile, d[j, i] decay(j, i) with j < i (and j == i with `diagonal`): dx +=
/// d decay kf, dkf += d decay x. crossed[t] (if not null) += their products over j < t <= i.
template <class T> [[gnu::noinline]] void pairs_backward(const LinearAttentionScratch<T>& w, const T* tile,
    bool diagonal, const T* x, Index count, T* dx, T* dkf, T* crossed) {
  using V = typename Simd<T>::V;
  const Index F = w.F;
  for_vectors<T>(F, [&](Index e, int lanes) {
    const auto at = [&](const T* rows, Index i) { return load_lanes(rows + i * F + e, lanes); };
    const auto add = [&](T* rows, Index i, V value) { store_lanes(rows + i * F + e, at(rows, i) + value, lanes); };
    V readers[kLinearChannelChunk];  // what token i and later ones see of token j, as it is at i
    for (Index j = 0; j < count; ++j) {
      const T* d = tile + j * w.width;
      V later{}, key = at(w.kf, j);
      for (Index i = count - 1; i > j; --i) {
        readers[i] = fma(splat<T>(d[i]), at(x, i), later);
        later = readers[i] * at(w.gates, i);
      }
      if (diagonal) {
        later = fma(splat<T>(d[j]), at(x, j), later);
        add(dx, j, splat<T>(d[j]) * key);
      }
      add(dkf, j, later);
      for (Index i = j + 1; i < count; ++i) {
        key *= at(w.gates, i);
        add(dx, i, splat<T>(d[i]) * key);
        if (crossed != nullptr) add(crossed, i, key * readers[i]);
      }
    }
  });
}

/// to[n] += x[n] * y[n]
template <class T> [[gnu::noinline]] void add_products(const T* x, const T* y, Index count, T* to) {
  for_vectors<T>(count, [&](Index e, int lanes) {
    store_lanes(to + e, fma(load_lanes(x + e, lanes), load_lanes(y + e, lanes), load_lanes(to + e, lanes)), lanes);
  });
}

/// Scores and their gradients of one head, and what follows from them within the chunk.
template <class T> inline void channel_head_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, const ChunkValues<T>& values, T* crossed, Index head, Index begin,
    Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = w.F, Dv = w.Dv;
  query_features(f, c, head, begin, count);
  load_gradient(t, w, head, begin, count);
  pack_transposed<T>(w.g, Dv, count, Dv, T{1}, w.g_panel, c.width);
  pair_scores(c, c.qf, true, T{1}, count, c.scores);
  triangle_scores(values.rows, values.stride, w.g_panel, c.width, Dv, count, w.dscores);
  add_later(c.scores, c.width, count, w.g, Dv, w.du, Dv, Dv, triangle_step<T>(rows_finite(w.g, Dv, count, Dv)));
  queries_of_state(f, w, static_cast<const T*>(nullptr), count);
  multiply_rows(w.dqf, c.intos, count * F, w.dqf);
  if (crossed != nullptr) add_products(c.qf, w.dqf, count * F, w.readers);
  pairs_backward(c, w.dscores, true, c.qf, count, w.dqf, w.dkf, crossed);
  multiply_rows(c.qf, c.intos, count * F, c.decayed);
  add_outer(c.decayed, F, F, w.g, Dv, count, t.dlocal, Dv, &c.ahead);
  write_queries(t, w, head, begin, count);
}

/// From du to the gradient of v (in du), and the gradients of keys, state, beta and decay through u.
template <class T> inline void channel_delta_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, T* crossed, Index begin, Index count) {
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = w.F, Dv = w.Dv, stride = round_up(F, Simd<T>::kLanes);
  solve_delta_backward(t.forward, c, begin, count, w.du, t.dbeta.data == nullptr ? nullptr : t.dbeta.at(0, begin));
  for (Index i = 0; i < count; ++i) set_row(T{-1}, w.du + i * Dv, w.g + i * Dv, Dv);
  pack_transposed<T>(w.g, Dv, count, Dv, T{1}, w.g_panel, c.width);
  triangle_scores(c.u, Dv, w.g_panel, c.width, Dv, count, w.dscores);
  pairs_backward(c, w.dscores, false, c.kf, count, w.dkf, w.dkf, crossed);
  rows_times<Store::kSet>(w.g, Dv, Dv, w.state_turned, stride, w.dqf, F, count, F, &c.ahead);
  multiply_rows(w.dqf, c.intos, count * F, w.dqf);
  if (crossed != nullptr) add_products(c.kf, w.dqf, count * F, w.readers);
  add_row(T{1}, w.dqf, w.dkf, count * F);
  multiply_rows(c.kf, c.intos, count * F, c.decayed);
  add_outer(c.decayed, F, F, w.g, Dv, count, t.dlocal, Dv, &c.ahead);
}

/// dlog_decay[t] = crossed[t] + sum_{i >= t} readers[i] + sum_{j < t} kept[j] + through, as decay_gradient in
/// backward.h.
template <class T> inline void channel_decay_gradient(
    const LinearAttentionGradient<T>& t, const LinearAttentionBackwardScratch<T>& w, Index begin, Index count) {
  using V = typename Simd<T>::V;
  for_vectors<T>(w.F, [&](Index e, int lanes) {
    const auto at = [&](const T* rows, Index i) { return load_lanes(rows + i * w.F + e, lanes); };
    V readers{}, kept = load_lanes(w.sum + e, lanes);
    for (Index i = count - 1; i >= 0; --i) {
      readers += at(w.readers, i);
      store_lanes(w.pairs + i * w.F + e, at(w.pairs, i) + readers, lanes);
    }
    for (Index j = 0; j < count; ++j) {
      store_lanes(t.dlog_decay.at(0, begin + j) + e, at(w.pairs, j) + kept, lanes);
      kept += at(w.kept, j);
    }
  });
}

template <class T> void channel_chunk_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, const T* state, Index begin, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = w.F, Dv = w.Dv;
  key_features(f, c, begin, count);
  const ChunkValues<T> values =
      f.beta.data == nullptr ? ChunkValues<T>{f.v.at(0, begin), f.v.stride} : ChunkValues<T>{c.u, Dv};
  turn_state(state, F, Dv, w.state_turned);
  turn_state(t.dlocal, F, Dv, w.dstate_turned);
  multiply_rows(c.kf, c.afters, count * F, c.decayed);
  rows_times<Store::kSet>(c.decayed, F, F, t.dlocal, Dv, w.du, Dv, count, Dv, &c.ahead);
  rows_times<Store::kSet>(
      values.rows, values.stride, Dv, w.dstate_turned, round_up(F, Simd<T>::kLanes), w.dkf, F, count, F, &c.ahead);
  multiply_rows(w.dkf, c.afters, count * F, w.dkf);
  T* const crossed = t.dlog_decay.data == nullptr ? nullptr : w.pairs;
  if (crossed != nullptr) {
    const T* whole = c.intos + (count - 1) * F;
    for (Index e = 0; e < count * F; ++e) w.readers[e] = crossed[e] = 0;
    multiply_rows(c.kf, w.dkf, count * F, w.kept);
    for (Index d = 0; d < F; ++d)
      w.sum[d] = whole[d] * dot_rows(state + d * Dv, t.dlocal + d * Dv, Dv, f.features.invariant);
  }
  decay_state(c, count, t.dlocal);
  for (Index head = 0; head < f.group_size; ++head) channel_head_backward(t, w, values, crossed, head, begin, count);
  if (f.beta.data != nullptr) channel_delta_backward(t, w, crossed, begin, count);
  if (crossed != nullptr) channel_decay_gradient(t, w, begin, count);
  write_keys(t, w, begin, count);
}

}  // namespace
}  // namespace qkv
