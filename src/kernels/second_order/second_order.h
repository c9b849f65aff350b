// Second order of one tile: forward mode (jvp) and double backward. Weights are recomputed from lse as in backward.h,
// whose masks, spans and products are used. docs/maths/second-order.md derives it; its letters are here
//   ts = score_tangent = softcap'(x) tx + tbias             tx = x_tangent = scale (tq.k + q.tk)
//   mean = sum_j w ts                                       push = dp_minus_delta = z dout.v - delta
//   e = weight_term = (ts - mean) push + z dout.tv          moment = sum_j w e
//   tout[i] = sum_j z w ((ts - mean) v + tv)
//   hs = score_gradient = w (e - moment)                    hx = x_gradient = hs softcap' + w push softcap'' tx
//   dx = x_tangent_gradient = w push softcap'
//   gq = scale (hx k + dx tk);  gk = scale (hx^T q + dx^T tq);  gv = (z w (ts - mean))^T dout;  gbias = hs
// Three sweeps over the keys: moment needs mean, the rest needs both.
#pragma once

#include "kernels/attention/backward.h"
#include "kernels/second_order/params.h"

namespace qkv {
namespace {

template <class T> struct SecondOrderScratch {
  BackwardScratch<T> first;  // p and ds: scores and dout.v in; z w (ts - mean) and hx out
  Carver carver;
  T* tangent_panels = carver.array<T>(first.width * first.head_dim);  // tangents of the queries, as first.q_panels
  T* by_query = carver.array<T>(kBackwardBlock * first.row);          // [kBackwardBlock][row]: k.tq in; dx or z w out
  T* by_key = carver.array<T>(kBackwardBlock * first.row);            // [kBackwardBlock][row]: tk.q
  T* by_value = carver.array<T>(kBackwardBlock * first.row);          // [kBackwardBlock][row]: tv.dout
  T* bias_tangent = carver.array<T>(kBackwardBlock * strip_lanes<T>());  // [kBackwardBlock][strip]: tbias
  T* mean = carver.array<T>(first.width);
  T* moment = carver.array<T>(first.width);
  std::size_t bytes = carver.used();

  SecondOrderScratch(void* base, Index d, Index dv) : first(base, d, dv, false), carver(base, first.bytes) {}
};

enum class SecondOrderPass {
  kMean,      // mean
  kOut,       // the terms of tout and moment
  kGradients  // the terms of gq, gk, gv, gbias
};

/// The pairs of vector v of a strip, keys [keys.begin, keys.end), in place.
template <class T, SecondOrderPass kPass> inline void second_order_vector(
    const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w, const BlockStrip<T>& b, int v, Span keys) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const ScoreParams<T>& s = t.first.scores;
  const Index lane = b.strip * strip_lanes<T>() + v * n;
  const bool capped = s.softcap > 0, biased = s.bias.data != nullptr, drops = s.dropout.threshold != 0;
  const bool moves_q = t.tangents.q != nullptr, moves_k = t.tangents.k != nullptr, moves_v = t.tangents.v != nullptr;
  const bool moves_bias = t.tangents.bias.data != nullptr,
             reads_dout = kPass != SecondOrderPass::kMean && t.first.dout.data != nullptr;
  const V high = load<T>(w.first.lse2_high + lane), low = load<T>(w.first.lse2_low + lane);
  const V delta = load<T>(w.first.delta + lane), mean = load<T>(w.mean + lane), moment = load<T>(w.moment + lane);
  const V unit = splat<T>(capped ? s.softcap : std::numbers::ln2_v<T>);  // scale / panel_factor: ln 2, or the soft cap
  const V cap = splat<T>(s.softcap), factor = splat<T>(drops ? kept_factor<T>(s.dropout) : T{1});
  V mean_sum{}, moment_sum{};
  for (Index j = keys.begin; j < keys.end; ++j) {
    const Index at = j * w.first.row + lane, at_bias = j * strip_lanes<T>() + v * n;
    const std::uint32_t bits = b.live.masked ? b.lane_mask[j] >> (v * n) : ~0u,
                        kept = drops ? w.first.kept[j] >> (v * n) : ~0u;
    V x = load<T>(w.first.p + at), softcap_first = splat<T>(1), softcap_second{}, x_tangent{};
    if (moves_q) x_tangent += load<T>(w.by_query + at);
    if (moves_k) x_tangent += load<T>(w.by_key + at);
    x_tangent *= unit;
    if (capped) {  // first and second derivative of c tanh(y / c)
      const V tanh_x = tanh<T>(x);
      softcap_first -= tanh_x * tanh_x;
      softcap_second = T{-2} * tanh_x * softcap_first / cap;
      x = tanh_x * (cap * std::numbers::log2e_v<T>);
    }
    if (biased) x += load<T>(w.first.bias + at_bias);
    const V weight = exp2<T>(x - high - low);
    V score_tangent = softcap_first * x_tangent;
    if (moves_bias) score_tangent += load<T>(w.bias_tangent + at_bias);
    if constexpr (kPass == SecondOrderPass::kMean) {  // select, so that NaN in a masked key or value is gone
      mean_sum += select_bits<V>(bits, weight * score_tangent, V{});
      continue;
    }
    score_tangent -= mean;
    V dp_minus_delta{}, weight_term{};
    if (reads_dout) {
      V dw = load<T>(w.first.ds + at), dout_tv = moves_v ? load<T>(w.by_value + at) : V{};
      if (drops) {
        dw = select_bits<V>(kept, dw * factor, V{});
        dout_tv = select_bits<V>(kept, dout_tv * factor, V{});
      }
      dp_minus_delta = dw - delta;
      weight_term = fma(score_tangent, dp_minus_delta, dout_tv);
    }
    store<T>(w.first.p + at,
        select_bits<V>(bits & kept, weight * score_tangent, V{}));  // dropout's factor comes with the products
    if constexpr (kPass == SecondOrderPass::kOut) {
      store<T>(w.by_query + at, select_bits<V>(bits & kept, weight, V{}));
      moment_sum += select_bits<V>(bits, weight * weight_term, V{});
    } else {
      const V score_gradient = weight * (weight_term - moment), ds = weight * dp_minus_delta;
      if (capped && adds_to_bias(t.first)) store<T>(w.first.bias + at_bias, select_bits<V>(bits, score_gradient, V{}));
      store<T>(
          w.first.ds + at, select_bits<V>(bits, score_gradient * softcap_first + ds * softcap_second * x_tangent, V{}));
      store<T>(w.by_query + at, select_bits<V>(bits, ds * softcap_first, V{}));
    }
  }
  if constexpr (kPass == SecondOrderPass::kMean) store<T>(w.mean + lane, mean + mean_sum);
  if constexpr (kPass == SecondOrderPass::kOut) store<T>(w.moment + lane, moment + moment_sum);
}

template <class T>
inline void load_bias_tangent(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w, const BlockStrip<T>& b) {
  load_natural_bias(t.tangents.bias, b.i0, b.ni, b.j0, b.live, w.bias_tangent);
  for (Index j = b.live.lo; t.tangents.position != nullptr && j < b.live.hi; ++j) {
    for (Index lane = 0; lane < b.ni; ++lane)
      w.bias_tangent[j * strip_lanes<T>() + lane] += t.tangents.position[b.j0 + j - b.i0 - lane];
  }
}

template <class T, SecondOrderPass kPass>
inline void second_order_strip(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w, BlockStrip<T>& b) {
  const ScoreParams<T>& s = t.first.scores;
  if (s.bias.data != nullptr) b.live.masked |= load_added(s, b.i0, b.ni, b.j0, b.live, w.first.bias, b.lane_mask);
  if (t.tangents.bias.data != nullptr) load_bias_tangent(t, w, b);
  if (s.dropout.threshold != 0) dropout_mask<T>(s.dropout, b.i0, b.ni, b.j0, b.live.lo, b.live.hi, w.first.kept);
  const Span* const keys_of = w.first.spans.vector_keys + b.strip * kVectors;
  for (int v = 0; v < live_vectors<T>(b.ni); ++v) {
    if (keys_of[v].empty()) continue;
    second_order_vector<T, kPass>(t, w, b, v, keys_of[v]);
    if (kPass != SecondOrderPass::kGradients) continue;
    if (t.first.dbias != nullptr) add_bias_gradient(t.first, w.first, b, v, keys_of[v]);
    if (t.first.dposition != nullptr)
      add_score_gradient<T>(t.first, w.first, b, v, keys_of[v], t.first.dposition, -1, 1);
  }
}

template <class T> inline const T* own_rows(const Rows& rows) { return reinterpret_cast<const T*>(rows.data); }
template <class T> inline const T* own_rows(const KeyMatrix& rows) { return static_cast<const T*>(rows.rows); }

/// into[key][lane] = sum_d rows[key, d] * panels[d, lane] within each vector's span; rows null: nothing.
template <class T> inline void multiply_keys(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w,
    const BackwardBlock& b, const T* rows, Index stride, const T* panels, Index depth, T* into) {
  if (rows == nullptr) return;
  for (Index lane = 0; lane < t.first.q_count; lane += kWideLanes<T>) {
    product_of_vectors<T, kWideVectors>({.a = rows + b.j0 * stride,
                                            .a_row = stride,
                                            .a_depth = 1,
                                            .b = panels + lane * depth,
                                            .b_row = w.first.panel,
                                            .c = into + lane,
                                            .c_row = w.first.row,
                                            .depth = depth},
        w.first.spans.vector_keys + lane / Simd<T>::kLanes, 0, {});
  }
}

/// Whether K, V or their tangents hold NaN or infinity in the block.
template <class T> inline bool keys_are_nonfinite(const SecondOrderTile<T>& t, const BackwardBlock& b) {
  const BackwardTile<T>& f = t.first;
  const auto nonfinite = [&b](const T* rows, Index stride, Index width) {
    return rows != nullptr && holds_nonfinite(rows + b.j0 * stride, stride, b.nj, width);
  };
  const HeadKeys& keys = f.keys;
  return nonfinite(own_rows<T>(keys.k), keys.k.row_stride, f.scores.head_dim) ||
         nonfinite(t.tangents.k, t.tangents.k_stride, f.scores.head_dim) ||
         nonfinite(own_rows<T>(keys.v), keys.v.row_stride, f.v_head_dim) ||
         nonfinite(t.tangents.v, t.tangents.v_stride, f.v_head_dim);
}

/// One sweep's share of a block; false where no pair of it is kept.
template <class T, SecondOrderPass kPass>
inline bool second_order_block(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w, BackwardBlock& b) {
  const BackwardTile<T>& f = t.first;
  const ScoreParams<T>& s = f.scores;
  BlockStrip<T> strips[kMostStrips<T>];
  mask_block(f, w.first, b, strips);
  if (!b.any) return false;
  const T *const k = own_rows<T>(f.keys.k), *const v = own_rows<T>(f.keys.v);
  const Index k_stride = f.keys.k.row_stride, v_stride = f.keys.v.row_stride;
  multiply_keys(t, w, b, k, k_stride, w.first.q_panels, s.head_dim, w.first.p);
  multiply_keys(t, w, b, t.tangents.q == nullptr ? nullptr : k, k_stride, w.tangent_panels, s.head_dim, w.by_query);
  multiply_keys(t, w, b, t.tangents.k, t.tangents.k_stride, w.first.q_panels, s.head_dim, w.by_key);
  if (kPass != SecondOrderPass::kMean && f.dout.data != nullptr) {
    multiply_keys(t, w, b, v, v_stride, w.first.dout_panels, f.v_head_dim, w.first.ds);
    multiply_keys(t, w, b, t.tangents.v, t.tangents.v_stride, w.first.dout_panels, f.v_head_dim, w.by_value);
  }
  for (Index strip = 0; strip * strip_lanes<T>() < f.q_count; ++strip) {
    if (strips[strip].live.any) second_order_strip<T, kPass>(t, w, strips[strip]);
    b.partial |= strips[strip].live.masked;
  }
  if (kPass != SecondOrderPass::kMean && b.partial)
    find_nonfinite(f.q_count, keys_are_nonfinite(t, b), w.first.nonfinite, strips, b);
  return true;
}

/// sums[i] += factor * sum_j pairs[j][i] * rows[j] over the block's keys, or sums[j] += factor * sum_i pairs[j][i] *
/// rows[i] over the tile's queries; rows null: nothing.
template <bool kToKeys, class T> inline void add_pairs_of(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w,
    const BackwardBlock& b, const T* pairs, const TypedRows<const T>& rows, Index width, T factor,
    const TypedRows<T>& sums) {
  if (rows.data == nullptr) return;
  const Index queries = t.first.q_count;
  const Product<T> product{.a = pairs,
      .a_row = kToKeys ? w.first.row : 1,
      .a_depth = kToKeys ? 1 : w.first.row,
      .b = rows.data + (kToKeys ? 0 : b.j0) * rows.stride,
      .b_row = rows.stride,
      .c = sums.data + (kToKeys ? b.j0 - t.first.k_begin : 0) * sums.stride,
      .c_row = sums.stride,
      .depth = kToKeys ? queries : b.nj,
      .factor = &factor};
  add_product(product, kToKeys ? b.nj : queries, width, kToKeys ? w.first.spans.queries_of : w.first.spans.keys_of,
      false, kToKeys ? b.nonfinite_queries : b.nonfinite_keys,
      [&w](Index m, Index k) { return pair_kept(w.first, kToKeys ? k : m, kToKeys ? m : k); });
}

/// Packs panels and loads lse and delta of the tile's queries. Lanes past q_count hold zeros.
template <class T> inline void pack_tile(const SecondOrderTile<T>& t, SecondOrderScratch<T>& w) {
  const BackwardTile<T>& f = t.first;
  const ScoreParams<T>& s = f.scores;
  const T scaled = panel_factor(s);
  const auto pack = [&](const T* rows, Index stride, Index width, T factor, T* panels) {
    if (rows != nullptr) pack_panels(TypedRows<const T>{rows, stride}, f.q_count, width, factor, w.first.panel, panels);
  };
  pack(own_rows<T>(f.q), f.q.stride, s.head_dim, scaled, w.first.q_panels);
  pack(t.tangents.q, t.tangents.q_stride, s.head_dim, scaled, w.tangent_panels);
  pack(own_rows<T>(f.dout), f.dout.stride, f.v_head_dim, T{1}, w.first.dout_panels);
  load_row_numbers(f, f.dout.data == nullptr ? nullptr : f.delta, w.first);
  for (Index i = 0; i < round_up(f.q_count, Simd<T>::kLanes); ++i) w.mean[i] = w.moment[i] = T{0};
}

/// body(block) for the blocks of keys [begin, end) in which some pair is kept.
template <class T, SecondOrderPass kPass, class Body> inline void for_each_block(
    const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w, Index begin, Index end, const Body& body) {
  const BackwardTile<T>& f = t.first;
  const auto next_block = [&](Index j0) {
    return live_step(f.scores.mask, f.q_begin, f.q_count, j0, end, kBackwardBlock);
  };
  for (Index j0 = next_block(begin); j0 < end; j0 = next_block(j0 + kBackwardBlock)) {
    BackwardBlock block{j0, smaller(kBackwardBlock, end - j0), false};
    if (second_order_block<T, kPass>(t, w, block)) body(block);
  }
}

/// Adds the sink to mean and moment: a key of value 0 whose score moves by sink_tangent. After the sweep for the mean.
template <class T> inline void add_sink(const SecondOrderTile<T>& t, const SecondOrderScratch<T>& w) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  if (t.first.scores.sink == nullptr) return;
  const V sink2 = log2_of_bias<T>(splat<T>(*t.first.scores.sink)), rate = splat<T>(t.sink_tangent);
  for (Index lane = 0; lane < t.first.q_count; lane += n) {
    const V weight = exp2<T>(sink2 - load<T>(w.first.lse2_high + lane) - load<T>(w.first.lse2_low + lane));
    const V mean = load<T>(w.mean + lane) + (weight == V{} ? V{} : weight * rate);
    const V e = (mean - rate) * load<T>(w.first.delta + lane);  // (rate - mean) * (0 - delta)
    store<T>(w.mean + lane, mean);
    store<T>(w.moment + lane, weight == V{} ? V{} : weight * e);
  }
}

template <class T> void second_order_rows(const SecondOrderTile<T>& t, void* scratch) {
  const BackwardTile<T>& f = t.first;
  const ScoreParams<T>& s = f.scores;
  SecondOrderScratch<T> w(scratch, s.head_dim, f.v_head_dim);
  pack_tile(t, w);
  const auto [begin, end] = reach(s, f.q_begin, f.q_count, kBackwardBlock);
  for_each_block<T, SecondOrderPass::kMean>(t, w, begin, end, [](const BackwardBlock&) {});
  add_sink(t, w);
  for (Index i = 0; i < f.q_count; ++i) t.mean[i] = w.mean[i];
  const T dropped = s.dropout.threshold == 0 ? T{1} : kept_factor<T>(s.dropout);
  if (t.tout != nullptr || f.dout.data != nullptr) {
    for_each_block<T, SecondOrderPass::kOut>(t, w, begin, end, [&](const BackwardBlock& b) {
      if (t.tout == nullptr) return;
      const TypedRows<T> tout{t.tout, t.tout_stride};
      add_pairs_of<false, T>(
          t, w, b, w.first.p, {own_rows<T>(f.keys.v), f.keys.v.row_stride}, f.v_head_dim, dropped, tout);
      add_pairs_of<false, T>(t, w, b, w.by_query, {t.tangents.v, t.tangents.v_stride}, f.v_head_dim, dropped, tout);
    });
  }
  if (f.dout.data == nullptr) return;
  for (Index i = 0; i < f.q_count; ++i) t.moment[i] = w.moment[i];
  if (f.dq == nullptr && !adds_to_bias(f)) return;
  for_each_block<T, SecondOrderPass::kGradients>(t, w, begin, end, [&](const BackwardBlock& b) {
    if (f.dq == nullptr) return;
    const TypedRows<T> dq{f.dq, f.dq_stride};
    add_pairs_of<false, T>(t, w, b, w.first.ds, {own_rows<T>(f.keys.k), f.keys.k.row_stride}, s.head_dim, s.scale, dq);
    add_pairs_of<false, T>(t, w, b, w.by_query, {t.tangents.k, t.tangents.k_stride}, s.head_dim, s.scale, dq);
  });
}

template <class T> void second_order_keys(const SecondOrderTile<T>& t, void* scratch) {
  const BackwardTile<T>& f = t.first;
  const ScoreParams<T>& s = f.scores;
  SecondOrderScratch<T> w(scratch, s.head_dim, f.v_head_dim);
  pack_tile(t, w);
  bool nonfinite = false;
  for (Index i = 0; i < f.q_count; ++i) {
    w.mean[i] = t.mean[i];
    w.moment[i] = t.moment[i];
    const T row = w.mean[i] + w.moment[i] + w.first.delta[i] + w.first.lse2_high[i];
    nonfinite |= !(row - row == 0);
  }
  // NaN or infinity in dout reaches delta, in q the lse, in tq the mean of any row that attends a key: search the rows
  // only then.
  const auto hidden = [&f](const T* rows, Index stride, Index width) {
    return rows != nullptr && holds_nonfinite(rows, stride, f.q_count, width);
  };
  w.first.nonfinite = (nonfinite || hides_queries(s)) && (hidden(own_rows<T>(f.q), f.q.stride, s.head_dim) ||
                                                             hidden(t.tangents.q, t.tangents.q_stride, s.head_dim) ||
                                                             hidden(own_rows<T>(f.dout), f.dout.stride, f.v_head_dim));
  const T dropped = s.dropout.threshold == 0 ? T{1} : kept_factor<T>(s.dropout);
  // The products gk and gv read zeros outside every vector's span.
  BackwardScratch<T> rates = w.first;
  rates.p = w.by_query;
  for_each_block<T, SecondOrderPass::kGradients>(t, w, f.k_begin, f.k_begin + f.k_count, [&](const BackwardBlock& b) {
    if (b.partial) {
      clear_gaps(w.first, b.nj);
      clear_gaps(rates, b.nj);
    }
    if (f.dv != nullptr) {
      add_pairs_of<true, T>(
          t, w, b, w.first.p, {own_rows<T>(f.dout), f.dout.stride}, f.v_head_dim, dropped, {f.dv, f.dv_stride});
    }
    if (f.dk == nullptr) return;
    const TypedRows<T> dk{f.dk, f.dk_stride};
    add_pairs_of<true, T>(t, w, b, w.first.ds, {own_rows<T>(f.q), f.q.stride}, s.head_dim, s.scale, dk);
    add_pairs_of<true, T>(t, w, b, w.by_query, {t.tangents.q, t.tangents.q_stride}, s.head_dim, s.scale, dk);
  });
}

}  // namespace
}  // namespace qkv
