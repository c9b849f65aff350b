// From scores and dP to P and dS of one strip, in place: the mask, the bias and its gradient, the soft cap, a callback,
// dropout. Forward: s2 = mod(cap * tanh(x) + bias);  p = exp2(s2 - lse2).  Backward: dS = P * (dP - delta).
#pragma once

#include "kernels/attention/live_spans.h"
#include "kernels/attention/scores.h"
#include "kernels/attention/scratch.h"

namespace qkv {
namespace {

/// One strip of queries against a block of keys.
template <class T> struct BlockStrip {
  Index strip, i0, ni, j0, nj;
  LiveRange live;
  std::uint32_t* lane_mask;  // [kBackwardBlock]
};

/// The steps between the products and the softmax.
enum class Form {
  kPlain,    // nothing
  kBiased,   // a bias
  kAny,      // bias, soft cap, dropout, as the tile says
  kModified  // a callback, after bias and soft cap; dropout, as the tile says
};

/// Whether dS of the bias differs from dS of the product; it is then kept in the bias panel.
template <class T> inline bool bias_differs(const ScoreParams<T>& s) { return s.softcap > 0 || s.mod.apply != nullptr; }

/// Applies the callback to vector v: scores in powers of two overwrite P, its derivative to w.slopes, the soft
/// cap's to the bias panel. Clears the bits of scores that are -inf; returns whether any was cleared.
template <class T> inline bool modify_vector(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const BlockStrip<T>& b, int v, Span keys) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScoreParams<T>& s = t.scores;
  const V cap = splat<T>(s.softcap);
  for (Index j = keys.begin; j < keys.end; ++j) {
    T* target = w.p + j * w.row + b.strip * strip_lanes<T>() + v * n;
    T* bias_at = w.bias + j * strip_lanes<T>() + v * n;
    V x = load<T>(target), slope = splat<T>(1);
    if (s.softcap > 0) {
      const V th = tanh<T>(x);
      slope -= th * th;
      x = th * cap;
    }
    if (s.bias.data != nullptr) x += load<T>(bias_at);
    store<T>(target, x);
    store<T>(bias_at, slope);
  }
  return modify_scores<T>(s, b.i0, b.ni, b.j0, {keys.begin, keys.end, v, 1}, w.p + b.strip * strip_lanes<T>(), w.row,
      w.slopes, b.lane_mask);
}

template <class T> inline bool adds_to_bias(const BackwardTile<T>& t) {
  return t.dbias != nullptr || t.dposition != nullptr;
}

/// P^T and dS^T of vector v of the strip, keys [keys.begin, keys.end).
template <class T, bool kMasked, Form kForm> inline void differentiate_vector(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const BlockStrip<T>& b, int v, Span keys) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScoreParams<T>& s = t.scores;
  const Index lane = b.strip * strip_lanes<T>() + v * n, row = w.row;
  const V lse2_high = load<T>(w.lse2_high + lane), lse2_low = load<T>(w.lse2_low + lane),
          delta = load<T>(w.delta + lane);
  constexpr bool modified = kForm == Form::kModified, any = kForm == Form::kAny || modified;
  const bool capped = kForm == Form::kAny && s.softcap > 0, drops = any && s.dropout.threshold != 0;
  const bool biased = kForm == Form::kBiased || (kForm == Form::kAny && s.bias.data != nullptr);
  const V cap = splat<T>(s.softcap * std::numbers::log2e_v<T>),
          factor = splat<T>(drops ? kept_factor<T>(s.dropout) : T{1});
  T* p_at = w.p + keys.begin * row + lane;
  T* ds_at = w.ds + keys.begin * row + lane;
  T* bias_at = w.bias + keys.begin * strip_lanes<T>() + v * n;
  for (Index j = keys.begin; j < keys.end; ++j, p_at += row, ds_at += row, bias_at += strip_lanes<T>()) {
    V x = load<T>(p_at), dp = load<T>(ds_at), slope = splat<T>(1);
    if (capped) {
      const V th = tanh<T>(x);
      slope -= th * th;  // the derivative of softcap(y) = c tanh(y / c)
      x = th * cap;
    }
    if (modified) slope = load<T>(bias_at);
    if (biased) x += load<T>(bias_at);
    const V p = exp2<T>(x - lse2_high - lse2_low);
    V p_out = p;
    if (drops) {  // out = sum_j keep * factor * w * v; p_out gets the factor in dV's product
      const std::uint32_t kept = w.kept[j] >> (v * n);
      p_out = select_bits<V>(kept, p, V{});
      dp = select_bits<V>(kept, dp * factor, V{});
    }
    V ds = p * (dp - delta);
    if (modified) ds *= load<T>(w.slopes + j * strip_lanes<T>() + v * n);
    if (kMasked) {  // select, so that NaN in a masked key or value is gone
      const std::uint32_t bits = b.lane_mask[j] >> (v * n);
      p_out = select_bits<V>(bits, p_out, V{});
      ds = select_bits<V>(bits, ds, V{});
      slope = select_bits<V>(bits, slope, V{});
    }
    store<T>(p_at, p_out);
    if (capped || modified) {
      if (adds_to_bias(t)) store<T>(bias_at, ds);
      ds *= slope;
    }
    store<T>(ds_at, ds);
  }
}

template <class T, Form kForm> inline void differentiate_lanes(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const BlockStrip<T>& b, int v, Span keys) {
  if (b.live.masked) {
    differentiate_vector<T, true, kForm>(t, w, b, v, keys);
  } else {
    differentiate_vector<T, false, kForm>(t, w, b, v, keys);
  }
}

/// to [Tq, Tk] += dS of vector v (`sets`: to 0), with respect to the score after the soft cap; an axis with stride 0 is
/// summed first, in a fixed order; over queries with invariant bits in one chain, whatever a vector holds.
template <class T> inline void add_score_gradient(const BackwardTile<T>& t, const BackwardScratch<T>& w,
    const BlockStrip<T>& b, int v, Span keys, T* to, Index row, Index column, bool sets = false) {
  const bool kept_apart = bias_differs(t.scores);
  const Index first = v * Simd<T>::kLanes, lanes = smaller<Index>(Simd<T>::kLanes, b.ni - first);
  const Index source_row = kept_apart ? strip_lanes<T>() : w.row;
  const T* source = (kept_apart ? w.bias : w.ds + b.strip * strip_lanes<T>()) + keys.begin * source_row + first;
  T* target = to + (b.i0 + first) * row + (b.j0 + keys.begin) * column;
  const Index rows = keys.end - keys.begin;
  if (row != 0 && column == 1) {
    sets ? add_transposed<T, true>(source, source_row, lanes, rows, target, row)
         : add_transposed<T>(source, source_row, lanes, rows, target, row);
    return;
  }
  // The inner loop runs over the axis that is summed, if there is one.
  const bool sum_keys = column == 0, one_chain = row == 0 && column != 0 && t.scores.invariant;
  const Index outer = sum_keys ? lanes : rows, inner = sum_keys ? rows : lanes;
  for (Index o = 0; o < outer; ++o) {
    T sum = one_chain ? target[o * column] : T{0};
    for (Index i = 0; i < inner; ++i) {
      const Index j = sum_keys ? i : o, lane = sum_keys ? o : i;
      const T value = source[j * source_row + lane];
      if (row != 0 && column != 0) {
        T& entry = target[lane * row + j * column];
        entry = (sets ? T{0} : entry) + value;
      } else {
        sum += value;
      }
    }
    if (row != 0 && column != 0) continue;
    T& whole = target[sum_keys ? o * row : o * column];
    whole = one_chain ? sum : whole + sum;
  }
}

template <class T> inline void add_bias_gradient(
    const BackwardTile<T>& t, const BackwardScratch<T>& w, const BlockStrip<T>& b, int v, Span keys) {
  add_score_gradient(t, w, b, v, keys, t.dbias, t.dbias_row_stride, t.dbias_column_stride, t.sets_dbias);
}

/// P^T and dS^T of one strip within its vectors' spans.
template <class T>
inline void differentiate_strip(const BackwardTile<T>& t, const BackwardScratch<T>& w, BlockStrip<T>& b) {
  const ScoreParams<T>& s = t.scores;
  if (s.bias.data != nullptr) {
    b.live.masked |= load_added(s, b.i0, b.ni, b.j0, b.live, w.bias, b.lane_mask);
  }
  if (s.dropout.threshold != 0) dropout_mask<T>(s.dropout, b.i0, b.ni, b.j0, b.live.lo, b.live.hi, w.kept);
  const bool capped_or_dropped = s.softcap > 0 || s.dropout.threshold != 0;
  const Form unmodified = capped_or_dropped ? Form::kAny : s.bias.data != nullptr ? Form::kBiased : Form::kPlain;
  const Form form = s.mod.apply != nullptr ? Form::kModified : unmodified;
  const Span* const keys_of = w.spans.vector_keys + b.strip * kVectors;
  for (int v = 0; v < live_vectors<T>(b.ni); ++v) {
    if (keys_of[v].empty()) continue;
    switch (form) {
      case Form::kPlain: differentiate_lanes<T, Form::kPlain>(t, w, b, v, keys_of[v]); break;
      case Form::kBiased: differentiate_lanes<T, Form::kBiased>(t, w, b, v, keys_of[v]); break;
      case Form::kAny: differentiate_lanes<T, Form::kAny>(t, w, b, v, keys_of[v]); break;
      case Form::kModified:
        b.live.masked |= modify_vector(t, w, b, v, keys_of[v]);
        differentiate_lanes<T, Form::kModified>(t, w, b, v, keys_of[v]);
    }
    if (t.dbias != nullptr) add_bias_gradient(t, w, b, v, keys_of[v]);
    if (t.dposition != nullptr) add_score_gradient<T>(t, w, b, v, keys_of[v], t.dposition, -1, 1);
  }
}

}  // namespace
}  // namespace qkv
