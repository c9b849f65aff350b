// The selective scan of Mamba-1 (qkv/state_space.h): channels in lanes, so that b and c, which the channels of a group
// share, are read once for a block of them and never copied. Backward walks the chunks from the last one: from the
// state that forward kept it recomputes a chunk's states and decays, then runs its tokens in reverse.
#pragma once

#include "kernels/carver.h"
#include "kernels/linear_attention/features.h"
#include "kernels/linear_attention/scan_params.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

/// Vectors of a block of channels: with invariant bits 256 bytes on every instruction set, since db and dc are summed
/// block by block.
constexpr int kScanVectors = 4, kWideScanVectors = 256 / QKV_VECTOR_BYTES;
template <class T, int kV> inline constexpr Index kScanBlock = kV * Simd<T>::kLanes;
/// Vectors over which sums over channels are kept apart: 64 bytes of a wide block.
template <int kV> inline constexpr int kScanSums = kV / kScanVectors;

/// 2^y for any y; infinity from half an octave below the end of the exponents on.
template <class T> inline typename Simd<T>::V decay_of(typename Simd<T>::V y) {
  constexpr T most = sizeof(T) == 4 ? T{127.5} : T{1023.5},
              beyond = most + T{0.75};  // beyond rounds up: 2^n is infinite
  return exp2<T>(y > most ? splat<T>(beyond) : y);
}

/// A block of one token's row.
template <class T, int kV> struct ScanRow {
  typename Simd<T>::V v[kV];
};
template <class T> [[gnu::always_inline]] inline int scan_lanes(Index channels, int v) {
  constexpr int n = Simd<T>::kLanes;
  return static_cast<int>(smaller<Index>(n, larger<Index>(0, channels - v * n)));
}
template <int kV, class T> [[gnu::always_inline]] inline ScanRow<T, kV> load_block(const T* row, Index channels) {
  ScanRow<T, kV> to;
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) to.v[v] = load_lanes(row + v * Simd<T>::kLanes, scan_lanes<T>(channels, v));
  return to;
}
template <class T, int kV>
[[gnu::always_inline]] inline void store_block(T* row, const ScanRow<T, kV>& from, Index channels) {
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) store_lanes(row + v * Simd<T>::kLanes, from.v[v], scan_lanes<T>(channels, v));
}

template <class T, int kV> void selective_scan(const ScanBlock<T>& t) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScanRow<T, kV> skip = load_block<kV>(t.skip, kScanBlock<T, kV>);
  for (Index i = 0; i < t.length; ++i) {
    if (t.kept != nullptr && i % kScanChunk == 0) {
      for (Index s = 0; s < t.states; ++s) {
        store_block(t.kept + i / kScanChunk * t.kept_chunk + s * t.kept_state,
            load_block<kV>(t.state + s * kScanBlock<T, kV>, kScanBlock<T, kV>), t.channels);
      }
    }
    const ScanRow<T, kV> u = load_block<kV>(t.u.at(i), t.channels), dt = load_block<kV>(t.dt.at(i), t.channels);
    V into[kV];
    ScanRow<T, kV> y;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) into[v] = dt.v[v] * u.v[v], y.v[v] = skip.v[v] * u.v[v];
    const T *b = t.b.data + i * t.b.stride, *c = t.c.data + i * t.c.stride;
    for (Index s = 0; s < t.states; ++s) {
      const V bs = splat<T>(b[s * t.b.state]), cs = splat<T>(c[s * t.c.state]);
      T* const state = t.state + s * kScanBlock<T, kV>;
      const T* const a = t.a + s * kScanBlock<T, kV>;
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const V h = fma(decay_of<T>(dt.v[v] * load<T>(a + v * n)), load<T>(state + v * n), into[v] * bs);
        store<T>(state + v * n, h);
        y.v[v] = fma(cs, h, y.v[v]);
      }
    }
    if (t.out.data != nullptr) store_block(t.out.at(i), y, t.channels);
  }
}

template <class T, int kV> struct ScanScratch {
  Carver carver;
  Index states;
  T* before = carver.array<T>((kScanChunk + 1) * states * kScanBlock<T, kV>);  // the chunk's states
  T* decays = carver.array<T>(kScanChunk * states * kScanBlock<T, kV>);
  Index lanes = kScanSums<kV> * Simd<T>::kLanes;
  T* lanes_b = carver.array<T>(states * lanes);  // of one token: db and dc by lanes of channels
  T* lanes_c = carver.array<T>(states * lanes);
  T* sums = carver.array<T>((states + 1) * kScanBlock<T, kV>);  // da and dskip of the tokens behind
  std::size_t bytes = carver.used();

  ScanScratch(void* base, Index num_states) : carver(base), states(num_states) {}
};

template <class T, int kV> std::size_t scan_backward_scratch_bytes(Index states) {
  return ScanScratch<T, kV>(nullptr, states).bytes;
}

/// to[s] = the sum of rows[s][lanes], lane after lane.
template <class T> inline void sum_each(const T* rows, Index lanes, Index count, T* to) {
  constexpr int n = Simd<T>::kLanes;
  for (Index s = 0; s < count; s += n) {
    auto sum = splat<T>(-T{0});  // which adds nothing to any number
    for (Index part = 0; part < lanes; part += n) {
      typename Simd<T>::V square[n];
      load_square<T>(rows + s * lanes + part, lanes, count - s, n, square);
      transpose_square<T>(square);
      for (int lane = 0; lane < n; ++lane) sum += square[lane];
    }
    store_lanes(to + s, sum, static_cast<int>(smaller<Index>(n, count - s)));
  }
}

/// Fills before and decays for tokens [begin, end).
template <class T, int kV>
inline void recompute_chunk(const ScanBlock<T>& t, const ScanScratch<T, kV>& w, Index begin, Index end) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const Index row = t.states * kScanBlock<T, kV>;
  for (Index s = 0; s < t.states; ++s) {
    const T* kept = t.kept + begin / kScanChunk * t.kept_chunk + s * t.kept_state;
    store_block(w.before + s * kScanBlock<T, kV>, load_block<kV>(kept, t.channels), kScanBlock<T, kV>);
  }
  for (Index i = begin; i < end; ++i) {
    const ScanRow<T, kV> u = load_block<kV>(t.u.at(i), t.channels), dt = load_block<kV>(t.dt.at(i), t.channels);
    T *before = w.before + (i - begin) * row, *decays = w.decays + (i - begin) * row;
    const T* b = t.b.data + i * t.b.stride;
    for (Index s = 0; s < t.states; ++s) {
      const V bs = splat<T>(b[s * t.b.state]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const Index at = s * kScanBlock<T, kV> + v * n;
        const V decay = decay_of<T>(dt.v[v] * load<T>(t.a + at));
        store<T>(decays + at, decay);
        store<T>(before + row + at, fma(decay, load<T>(before + at), dt.v[v] * u.v[v] * bs));
      }
    }
  }
}

/// One token in reverse. With g the gradient of the state after it: db = sum g dt u, dc = sum h dout, and with
/// x = sum_s g b, y = sum_s g decay h' A: du = dt x + D dout, ddt = u x + y.
template <class T, int kV> inline void token_backward(
    const ScanBlockGradient<T>& g, const ScanScratch<T, kV>& w, Index i, const T* before, const T* decays) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScanBlock<T>& t = g.forward;
  const ScanRow<T, kV> u = load_block<kV>(t.u.at(i), t.channels), dt = load_block<kV>(t.dt.at(i), t.channels),
                       dy = load_block<kV>(g.dout.at(i), t.channels), skip = load_block<kV>(t.skip, kScanBlock<T, kV>);
  const T *b = t.b.data + i * t.b.stride, *c = t.c.data + i * t.c.stride,
          *after = before + t.states * kScanBlock<T, kV>;
  V into[kV], x[kV] = {}, y[kV] = {};
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) into[v] = dt.v[v] * u.v[v];
  for (Index s = 0; s < t.states; ++s) {
    const V bs = splat<T>(b[s * t.b.state]), cs = splat<T>(c[s * t.c.state]);
    V sum_b[kScanSums<kV>]{}, sum_c[kScanSums<kV>]{};
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const Index at = s * kScanBlock<T, kV> + v * n;
      const V decay = load<T>(decays + at), dh = fma(cs, dy.v[v], load<T>(g.dstate + at));
      sum_b[v % kScanSums<kV>] = fma(dh, into[v], sum_b[v % kScanSums<kV>]);
      sum_c[v % kScanSums<kV>] = fma(dy.v[v], load<T>(after + at), sum_c[v % kScanSums<kV>]);
      x[v] = fma(dh, bs, x[v]);
      const V dlog = dh * (decay * load<T>(before + at));
      y[v] = fma(dlog, load<T>(t.a + at), y[v]);
      store<T>(g.da + at, fma(dlog, dt.v[v], load<T>(g.da + at)));
      store<T>(g.dstate + at, dh * decay);
    }
    for (int part = 0; part < kScanSums<kV>; ++part) {
      store<T>(w.lanes_b + s * w.lanes + part * n, sum_b[part]);
      store<T>(w.lanes_c + s * w.lanes + part * n, sum_c[part]);
    }
  }
  sum_each(w.lanes_b, w.lanes, t.states, g.db + i * t.states);
  sum_each(w.lanes_c, w.lanes, t.states, g.dc + i * t.states);
  ScanRow<T, kV> du, ddt;
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) {
    du.v[v] = fma(dt.v[v], x[v], skip.v[v] * dy.v[v]);
    ddt.v[v] = fma(u.v[v], x[v], y[v] * std::numbers::ln2_v<T>);
    store<T>(g.dskip + v * n, fma(dy.v[v], u.v[v], load<T>(g.dskip + v * n)));
  }
  if (g.du.data != nullptr) store_block(g.du.at(i), du, t.channels);
  if (g.ddt.data != nullptr) store_block(g.ddt.at(i), ddt, t.channels);
}

/// sums += part, part = 0.
template <class T> inline void move_sums(T* part, Index count, T* sums) {
  for (Index e = 0; e < count; ++e) sums[e] += part[e], part[e] = 0;
}

template <class T, int kV> void selective_scan_backward(const ScanBlockGradient<T>& g, void* scratch) {
  const ScanBlock<T>& t = g.forward;
  const ScanScratch<T, kV> w(scratch, t.states);
  const Index row = t.states * kScanBlock<T, kV>;
  for (Index e = 0; e < row; ++e) g.da[e] = w.sums[e] = 0;
  for (Index e = 0; e < kScanBlock<T, kV>; ++e) g.dskip[e] = w.sums[row + e] = 0;
  for (Index end = t.length; end > 0;) {
    if (end % kSumTokens == 0) {
      move_sums(g.da, row, w.sums);
      move_sums(g.dskip, kScanBlock<T, kV>, w.sums + row);
    }
    const Index begin = (end - 1) / kScanChunk * kScanChunk;
    recompute_chunk(t, w, begin, end);
    for (Index i = end - 1; i >= begin; --i)
      token_backward(g, w, i, w.before + (i - begin) * row, w.decays + (i - begin) * row);
    end = begin;
  }
  for (Index e = 0; e < row; ++e) g.da[e] += w.sums[e];
  for (Index e = 0; e < kScanBlock<T, kV>; ++e) g.dskip[e] += w.sums[row + e];
}

}  // namespace
}  // namespace qkv
