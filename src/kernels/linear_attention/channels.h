// A decay for each channel of phi(k): Kimi Delta Attention (arXiv:2510.26692, eq. 1), and without the delta rule GLA
// (2312.06635, eq. 3).
//   S[t] = diag(e^log_decay[t]) S[t-1] + kf[t] u[t]^T
// In a chunk the square is P[j,i] = sum_d kf[j,d] decay_d(j,i) qf[i,d]. The usual form of it, a product of (kf e^-G)
// and (qf e^G) with G the sum of log_decay, overflows after a few tokens of strong decay. Here chunks are short and the
// decay of each pair and channel is a product of the tokens' decays between, none of which is above 1 where log_decay
// is not above 0: nothing overflows, and what is tiny keeps its relative accuracy.
#pragma once

#include "kernels/linear_attention/chunk.h"

namespace qkv {
namespace {

/// Fills gates, intos and afters for tokens [begin, begin + count).
template <class T> [[gnu::noinline]] void channel_decays(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count) {
  using V = typename Simd<T>::V;
  const T* log_decay = t.log_decay.at(0, begin);
  for_vectors<T>(w.F, [&](Index e, int lanes) {
    V into = splat<T>(1), after = splat<T>(1);
    for (Index i = 0; i < count; ++i) {
      const V gate = exp_of_sum<T>(load_lanes(log_decay + i * t.log_decay.stride + e, lanes), V{});
      into *= gate;
      store_lanes(w.gates + i * w.F + e, gate, lanes);
      store_lanes(w.intos + i * w.F + e, into, lanes);
    }
    for (Index i = count - 1; i >= 0; --i) {
      store_lanes(w.afters + i * w.F + e, after, lanes);
      after *= load_lanes(w.gates + i * w.F + e, lanes);
    }
  });
}

/// to[n] = x[n] * y[n]
template <class T> [[gnu::noinline]] void multiply_rows(const T* x, const T* y, Index count, T* to) {
  for_vectors<T>(count,
      [&](Index e, int lanes) { store_lanes(to + e, load_lanes(x + e, lanes) * load_lanes(y + e, lanes), lanes); });
}

/// sum[i] += kf decay(to i) x[i] for `count` tokens behind that of kf; kV vectors of channels `apart`, of the last one
/// `lanes`.
template <class T, int kV> inline __attribute__((always_inline)) void pair_columns(
    const T* kf, const T* x, const T* gates, Index row, Index count, Index apart, int lanes, typename Simd<T>::V* sum) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const auto live = [&](int v) { return v + 1 < kV ? n : lanes; };
  V key[kV];
  for (int v = 0; v < kV; ++v) key[v] = load_lanes(kf + v * apart, live(v));
  for (Index i = 0; i < count; ++i, x += row, gates += row) {
    V total = sum[i];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      key[v] *= load_lanes(gates + v * apart, live(v));
      total = fma(key[v], load_lanes(x + v * apart, live(v)), total);
    }
    sum[i] = total;
  }
}

/// tile[j, i] = sign sum_d kf[j, d] decay_d(j, i) x[i, d] where i > j; where i == j the same, or 0; 0 where i < j.
template <class T> [[gnu::noinline]] void pair_scores(
    const LinearAttentionScratch<T>& w, const T* x, bool diagonal, T sign, Index count, T* tile) {
  constexpr int n = Simd<T>::kLanes, block = 4;
  const Index F = w.F;
  const Index apart = w.s.invariant ? 64 / Index{sizeof(T)} : n;  // of the vectors that share a sum
  for (Index j = 0; j < count; ++j) {
    const T *kf = w.kf + j * F, *later = x + (j + 1) * F, *gates = w.gates + (j + 1) * F;
    const Index left = count - j - 1;
    T totals[kLinearChannelChunk] = {};
    for (Index first = 0; first < apart; first += n) {
      typename Simd<T>::V sum[kLinearChannelChunk] = {};
      Index e = first;
      for (; e + (block - 1) * apart + n <= F; e += block * apart)
        pair_columns<T, block>(kf + e, later + e, gates + e, F, left, apart, n, sum);
      for (; e < F; e += apart) {
        const int lanes = static_cast<int>(smaller<Index>(n, F - e));
        pair_columns<T, 1>(kf + e, later + e, gates + e, F, left, apart, lanes, sum);
      }
      for (Index i = 0; i < left; ++i) totals[i] = sum_lanes<T>(sum[i], totals[i]);
    }
    T* row = tile + j * w.width;
    for (Index i = 0; i < w.width; ++i) row[i] = 0;
    if (diagonal) row[j] = sign * dot_rows(kf, x + j * F, F, w.s.invariant);
    for (Index i = 0; i < left; ++i) row[j + 1 + i] = sign * totals[i];
  }
}

/// rows[d, :] *= the decay of channel d over the chunk
template <class T> [[gnu::noinline]] void decay_state(const LinearAttentionScratch<T>& w, Index count, T* state) {
  const T* whole = w.intos + (count - 1) * w.F;
  for (Index d = 0; d < w.F; ++d) scale_row(state + d * w.Dv, w.Dv, whole[d]);
}

}  // namespace
}  // namespace qkv
