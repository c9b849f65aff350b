// A causal depthwise convolution of few taps on rows of tokens (qkv/state_space.h), channels in lanes.
#pragma once

#include "kernels/linear_attention/features.h"
#include "kernels/linear_attention/scan_params.h"
#include "simd/sigmoid.h"

namespace qkv {
namespace {

template <class T> inline Index reach_of(const ConvolutionRows<T>& t, Index token) {
  return t.reach == nullptr ? t.width - 1 : t.reach[token];
}
/// The row of `token`, or of one before the first; null: none, which are zeros or not wanted.
template <class T> inline T* row_of(const TokenRows<T>& rows, const TokenRows<T>& before, Index taps, Index token) {
  const TokenRows<T>& from = token >= 0 ? rows : before;
  return from.data == nullptr ? nullptr : from.at(token >= 0 ? token : taps + token);
}

/// Tokens of a block: each reads all width - 1 before it, which exist.
constexpr Index kBlockTokens = 4;

template <class T> inline bool is_block(const ConvolutionRows<T>& t, Index token) {
  const Index end = token + kBlockTokens;
  if (token < t.width - 1 || end > t.end) return false;
  while (token < end && reach_of(t, token) == t.width - 1) ++token;
  return token == end;
}

/// body.operator()<tokens, reach>(token, first, end), reach -1: any; blocks on whole vectors of channels, the rest one
/// token after another.
template <class T, class Body> inline void for_token_blocks(const ConvolutionRows<T>& t, const Body& body) {
  const Index whole = t.channels - t.channels % Simd<T>::kLanes;
  for (Index i = t.begin; i < t.end;) {
    const bool block = is_block(t, i);
    if (block && t.width == 4) {
      body.template operator()<kBlockTokens, 3>(i, 0, whole);
    } else if (block) {
      body.template operator()<kBlockTokens, -1>(i, 0, whole);
    }
    const Index first = block ? whole : 0, end = i + (block ? kBlockTokens : 1);
    for (; i < end; ++i) {
      if (first < t.channels) body.template operator()<1, -1>(i, first, t.channels);
    }
  }
}

/// z[i] = bias + sum_j weight[width - 1 - j] x[token + i - j], a vector of channels from e on.
template <class T, int kI> inline __attribute__((always_inline)) void convolved(
    const ConvolutionRows<T>& t, Index token, Index reach, Index e, int lanes, typename Simd<T>::V (&z)[kI]) {
#pragma GCC unroll 4
  for (int i = 0; i < kI; ++i) z[i] = t.bias == nullptr ? typename Simd<T>::V{} : load_lanes(t.bias + e, lanes);
#pragma GCC unroll 4
  for (Index j = reach; j >= 0; --j) {
    const auto weight = load_lanes(t.weight.at(t.width - 1 - j) + e, lanes);
#pragma GCC unroll 4
    for (int i = 0; i < kI; ++i) {
      const T* const row = kI > 1 ? t.x.at(token + i - j) : row_of(t.x, t.before, t.width - 1, token - j);
      if (kI > 1 || row != nullptr) z[i] = fma(weight, load_lanes(row + e, lanes), z[i]);
    }
  }
}

/// body.operator()<whole>(e, lanes) for the vectors of channels [first, end); of many tokens all are whole.
template <class T, int kI, class Body>
[[gnu::always_inline]] inline void for_row_vectors(Index first, Index end, const Body& body) {
  constexpr int n = Simd<T>::kLanes;
  for (; first + n <= end; first += n) body.template operator()<true>(first, n);
  if constexpr (kI == 1) {
    if (first < end) body.template operator()<false>(first, static_cast<int>(end - first));
  }
}

template <class T, int kI, int kReach>
void convolve_tokens(const ConvolutionRows<T>& t, Index token, Index first, Index end) {
  const Index any_reach = reach_of(t, token);
  for_row_vectors<T, kI>(first, end, [&]<bool kWhole>(Index e, int some) {
    const int lanes = kWhole ? Simd<T>::kLanes : some;
    const Index reach = kReach < 0 ? any_reach : kReach;
    typename Simd<T>::V z[kI] = {};
    if (reach >= 0) convolved(t, token, reach, e, lanes, z);
#pragma GCC unroll 4
    for (int i = 0; i < kI; ++i) store_lanes(t.out.at(token + i) + e, t.silu ? silu<T>(z[i]) : z[i], lanes);
  });
}

template <class T> void convolve(const ConvolutionRows<T>& t) {
  for_token_blocks(t, [&]<int kI, int kReach>(Index token, Index first, Index end) {
    convolve_tokens<T, kI, kReach>(t, token, first, end);
  });
}

template <class T, int kI, int kReach>
void convolve_backward_tokens(const ConvolutionGradient<T>& g, Index token, Index first, Index end) {
  using V = typename Simd<T>::V;
  const ConvolutionRows<T>& t = g.forward;
  const Index any_reach = reach_of(t, token);
  for_row_vectors<T, kI>(first, end, [&]<bool kWhole>(Index e, int some) {
    const int lanes = kWhole ? Simd<T>::kLanes : some;
    const Index reach = kReach < 0 ? any_reach : kReach;
    if (reach < 0) {
      if (g.dx.data != nullptr) store_lanes(g.dx.at(token) + e, V{}, lanes);
      return;
    }
    V z[kI] = {}, dz[kI], dbias = load_lanes(g.dbias + e, lanes);
    if (t.silu) convolved(t, token, reach, e, lanes, z);
#pragma GCC unroll 4
    for (int i = 0; i < kI; ++i) {
      dz[i] = load_lanes(g.dout.at(token + i) + e, lanes);
      if (t.silu) dz[i] *= silu_slope<T>(z[i]);
      dbias += dz[i];
    }
    store_lanes(g.dbias + e, dbias, lanes);
#pragma GCC unroll 4
    for (Index j = 0; j <= reach; ++j) {
      T* const to = g.dweight.at(t.width - 1 - j) + e;
      V dweight = load_lanes(to, lanes);
#pragma GCC unroll 4
      for (int i = 0; i < kI; ++i) {
        const T* const row = kI > 1 ? t.x.at(token + i - j) : row_of(t.x, t.before, t.width - 1, token - j);
        if (kI > 1 || row != nullptr) dweight = fma(dz[i], load_lanes(row + e, lanes), dweight);
      }
      store_lanes(to, dweight, lanes);
    }
    // dx[token + r] = sum_i weight[width - 1 - (i - r)] dz[i]
#pragma GCC unroll 8
    for (Index r = -reach; r < kI; ++r) {
      T* const to =
          kI > 1 && g.dx.data != nullptr ? g.dx.at(token + r) : row_of(g.dx, g.dbefore, t.width - 1, token + r);
      if (to == nullptr) continue;
      V dx = r < 0 ? load_lanes(to + e, lanes) : V{};
#pragma GCC unroll 4
      for (Index i = 0; i < kI; ++i) {
        if (i < r || i - r > reach) continue;
        const V weight = load_lanes(t.weight.at(t.width - 1 - i + r) + e, lanes);
        dx = i == r ? dz[i] * weight : fma(dz[i], weight, dx);
      }
      store_lanes(to + e, dx, lanes);
    }
  });
}

template <class T> void convolve_backward(const ConvolutionGradient<T>& g) {
  const ConvolutionRows<T>& t = g.forward;
  for (Index k = 0; k < t.width; ++k) {
    for (Index e = 0; e < t.channels; ++e) g.dweight.at(k)[e] = 0;
  }
  for (Index e = 0; e < t.channels; ++e) g.dbias[e] = 0;
  for_token_blocks(t, [&]<int kI, int kReach>(Index token, Index first, Index end) {
    convolve_backward_tokens<T, kI, kReach>(g, token, first, end);
  });
}

}  // namespace
}  // namespace qkv
