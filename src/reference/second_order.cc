// The formulas of second_order.h, in the order in which docs/maths/second-order.md derives them.
#include "reference/second_order.h"

#include <vector>

#include "reference/scores.h"

namespace qkv::inline v0::reference {
namespace {

template <class T> bool is_empty(T lse) { return lse == -kInfinity<T>; }

template <class T> Tensor<T> zeros_like(const View<const T, 4>& view) {
  return Tensor<T>({view.size(0), view.size(1), view.size(2), view.size(3)});
}

/// One row of pairs (i, j): the score, its derivatives along the tangents, and the weights.
template <class T> struct Row {
  std::vector<bool> kept;
  std::vector<T> slope, bend;        // first and second derivative of the softcap
  std::vector<T> product_rate;       // tx[j] = scale * (tq[i].k[j] + q[i].tk[j])
  std::vector<T> rate;               // ts[j] = slope * tx[j] + tbias[i,j]
  T sink_rate = 0, sink_weight = 0;  // of the sink's logit, a key whose value is 0
  T mean = 0;                        // sum_j w[j] * ts[j] + sink_weight * sink_rate: the tangent of lse

  Row(const Scores<T>& scores, const Tangents<T>& t, const View<const T, 4>& weights, T lse, Index b, Index h, Index i)
      : kept(static_cast<std::size_t>(scores.k.size(2))),
        slope(kept.size()),
        bend(kept.size()),
        product_rate(kept.size()),
        rate(kept.size()) {
    const Index g = h / scores.group_size;
    if (scores.sink(h) != -kInfinity<T>) {
      sink_weight = std::exp(scores.sink(h) - lse);
      if (!t.sinks.is_null()) sink_rate = t.sinks(h);
      mean = sink_weight * sink_rate;
    }
    Options<T> moved;
    moved.bias = t.bias;
    if (!t.position_table.is_null()) {
      moved.position_table = t.position_table;
      moved.position_row = scores.options.position_row;
      moved.position_factor = scores.options.position_factor;
    }
    const Scores<T> tangent{scores.q, scores.k, moved};  // for the terms that it adds to scores
    for (Index j = 0; j < scores.k.size(2); ++j) {
      const auto at = static_cast<std::size_t>(j);
      kept[at] = scores.keep(b, h, i, j);
      if (!kept[at]) continue;
      // softcap(x) = c tanh(x / c): softcap' = 1 - tanh^2, softcap'' = -2 tanh (1 - tanh^2) / c
      slope[at] = scores.softcap_slope(b, h, i, j);
      if (scores.cap > 0) bend[at] = -2 * std::tanh(scores.product(b, h, i, j) / scores.cap) * slope[at] / scores.cap;
      if (!t.q.is_null()) product_rate[at] += scores.scale * dot(t.q, b, h, i, scores.k, g, j);
      if (!t.k.is_null()) product_rate[at] += scores.scale * dot(scores.q, b, h, i, t.k, g, j);
      rate[at] = slope[at] * product_rate[at] + tangent.bias(b, h, i, j) + tangent.position(h, i, j);
      mean += weights(b, h, i, j) * rate[at];
    }
  }
};

/// tout[i,:] = sum_j factor * (w[i,j] * (ts[i,j] - mean) * v[j,:] + w[i,j] * tv[j,:]); an empty row's weights are
/// constant.
template <class T> void add_out_rate(const Scores<T>& scores, const Tangents<T>& t, const View<const T, 4>& v,
    const View<const T, 4>& weights, const Row<T>& row, bool empty, Index b, Index h, Index i, const View<T, 4>& tout) {
  const Index g = h / scores.group_size;
  for (Index j = 0; j < v.size(2); ++j) {
    const auto at = static_cast<std::size_t>(j);
    const bool reads = empty ? scores.options.empty_row != EmptyRow::kZero : row.kept[at];
    if (!reads) continue;
    const T factor = scores.factor(b, h, i, j), w = weights(b, h, i, j);
    for (Index n = 0; n < v.size(3); ++n) {
      if (!empty) tout(b, h, i, n) += factor * w * (row.rate[at] - row.mean) * v(b, g, j, n);
      tout(b, h, i, n) += factor * w * (t.v.is_null() ? T(0) : t.v(b, g, j, n));
    }
  }
}

}  // namespace

template <class T> Jvp<T> attention_jvp(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v,
    const Tangents<T>& tangents, const Options<T>& options) {
  const Scores<T> scores{q, k, options};
  const Forward<T> forward = attention_forward(q, k, v, options);
  const View<const T, 4> weights = forward.weights;
  const View<const T, 3> lse = forward.lse;
  Jvp<T> result{Tensor<T>(forward.out.sizes()), Tensor<T>(forward.lse.sizes())};
  const View<T, 4> tout = result.out;
  const View<T, 3> tlse = result.lse;
  for (Index b = 0; b < q.size(0); ++b) {
    for (Index h = 0; h < q.size(1); ++h) {
      for (Index i = 0; i < q.size(2); ++i) {
        const Row<T> row(scores, tangents, weights, lse(b, h, i), b, h, i);
        tlse(b, h, i) = row.mean;
        add_out_rate(scores, tangents, v, weights, row, is_empty(lse(b, h, i)), b, h, i, tout);
      }
    }
  }
  return result;
}

template <class T> DoubleBackward<T> attention_double_backward(View<const T, 4> q, View<const T, 4> k,
    View<const T, 4> v, View<const T, 4> dout, View<const T, 3> dlse, const Tangents<T>& cotangents,
    const Options<T>& options, const Forward<T>& forward) {
  const Scores<T> scores{q, k, options};
  const Index kv_len = k.size(2), head_dim = q.size(3);
  const View<const T, 4> weights = forward.weights;
  const View<const T, 4> out = forward.out;
  const View<const T, 3> lse = forward.lse;
  DoubleBackward<T> result{zeros_like(q), zeros_like(k), zeros_like(v), Tensor<T>(forward.weights.sizes()),
      Tensor<T>(forward.out.sizes()), Tensor<T>(forward.lse.sizes())};
  if (!options.sinks.is_null()) result.sinks = Tensor<T>({q.size(1)});
  if (!options.position_table.is_null()) result.position_table = Tensor<T>({options.position_table.size(0), q.size(1)});
  const View<T, 4> gq = result.q, gk = result.k, gv = result.v, gbias = result.bias, gdout = result.dout;
  const View<T, 3> gdlse = result.dlse;

  for (Index b = 0; b < q.size(0); ++b) {
    for (Index h = 0; h < q.size(1); ++h) {
      const Index g = h / scores.group_size;
      for (Index i = 0; i < q.size(2); ++i) {
        // <cotangents, gradients> = <tout, dout> + <tlse, dlse>: its gradients for dout and dlse are tout and tlse.
        const bool empty = is_empty(lse(b, h, i));
        const Row<T> row(scores, cotangents, weights, lse(b, h, i), b, h, i);
        gdlse(b, h, i) = row.mean;
        add_out_rate(scores, cotangents, v, weights, row, empty, b, h, i, gdout);
        if (empty) continue;
        // push[j] = dw[j] - delta;   e[j] = (ts[j] - mean) * push[j] + factor * dout[i].tv[j];
        // moment = sum_j w[j] * e[j]
        const T delta = dot(dout, b, h, i, out, h, i) - (dlse.is_null() ? T(0) : dlse(b, h, i));
        std::vector<T> push(row.kept.size()), e(row.kept.size());
        const T sink_e = (row.sink_rate - row.mean) * (0 - delta);
        T moment = row.sink_weight * sink_e;
        for (Index j = 0; j < kv_len; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (!row.kept[at]) continue;
          const T factor = scores.factor(b, h, i, j);
          push[at] = factor * dot(dout, b, h, i, v, g, j) - delta;
          e[at] = (row.rate[at] - row.mean) * push[at];
          if (!cotangents.v.is_null()) e[at] += factor * dot(dout, b, h, i, cotangents.v, g, j);
          moment += weights(b, h, i, j) * e[at];
        }
        if (!options.sinks.is_null()) result.sinks.data()[h] += row.sink_weight * (sink_e - moment);
        for (Index j = 0; j < kv_len; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (!row.kept[at]) continue;
          const T w = weights(b, h, i, j), factor = scores.factor(b, h, i, j);
          // through the weights: hs = w * (e - moment);   through ts: ds = w * push
          const T hs = w * (e[at] - moment), ds = w * push[at];
          gbias(b, h, i, j) = hs;
          if (!options.position_table.is_null()) {
            result.position_table.data()[options.position_row(i, j) * q.size(1) + h] +=
                hs * static_cast<T>(options.position_factor(i, j));
          }
          // s = softcap(x) + bias, ts = softcap'(x) * tx + tbias
          const T hx = hs * row.slope[at] + ds * row.bend[at] * row.product_rate[at], dx = ds * row.slope[at];
          // x = scale * q.k, tx = scale * (tq.k + q.tk)
          for (Index n = 0; n < head_dim; ++n) {
            gq(b, h, i, n) += scores.scale * hx * k(b, g, j, n);
            gk(b, g, j, n) += scores.scale * hx * q(b, h, i, n);
            if (!cotangents.k.is_null()) gq(b, h, i, n) += scores.scale * dx * cotangents.k(b, g, j, n);
            if (!cotangents.q.is_null()) gk(b, g, j, n) += scores.scale * dx * cotangents.q(b, h, i, n);
          }
          // tout = sum_j factor * w * (ts - mean) * v[j]
          for (Index n = 0; n < v.size(3); ++n)
            gv(b, g, j, n) += factor * w * (row.rate[at] - row.mean) * dout(b, h, i, n);
        }
      }
    }
  }
  return result;
}

#define QKV_REFERENCE(T)                                                                                        \
  template Jvp<T> attention_jvp<T>(                                                                             \
      View<const T, 4>, View<const T, 4>, View<const T, 4>, const Tangents<T>&, const Options<T>&);             \
  template DoubleBackward<T> attention_double_backward<T>(View<const T, 4>, View<const T, 4>, View<const T, 4>, \
      View<const T, 4>, View<const T, 3>, const Tangents<T>&, const Options<T>&, const Forward<T>&);
QKV_REFERENCE(float)
QKV_REFERENCE(double)
QKV_REFERENCE(long double)
#undef QKV_REFERENCE

}  // namespace qkv::inline v0::reference
