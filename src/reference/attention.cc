// The formulas of attention.h, forward and backward.
#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/scores.h"

namespace qkv::inline v0::reference {
namespace {

/// One row of weights: w[j] = p[j] / l, p[j] = keep ? exp(s[j] - m) : 0, l = sum_j p[j] + exp(sink - m), m = max of s
/// and sink. Returns lse = m + log(l).
template <class T> T softmax_row(const Scores<T>& scores, Index b, Index h, Index i, View<T, 4> weights) {
  const Index kv_len = weights.size(3);
  const T sink = scores.sink(h);
  T row_max = sink;
  bool empty = sink == -kInfinity<T>;
  std::vector<bool> kept(static_cast<std::size_t>(kv_len));
  for (Index j = 0; j < kv_len; ++j) {
    kept[static_cast<std::size_t>(j)] = scores.keep(b, h, i, j);
    if (!kept[static_cast<std::size_t>(j)]) continue;
    empty = false;
    weights(b, h, i, j) = scores.score(b, h, i, j);
    row_max = std::max(row_max, weights(b, h, i, j));
  }
  if (empty) {
    const EmptyRow rule = scores.options.empty_row;
    const T fill = rule == EmptyRow::kZero   ? T(0)
                   : rule == EmptyRow::kMean ? T(1) / static_cast<T>(kv_len)
                                             : kNotANumber<T>;
    for (Index j = 0; j < kv_len; ++j) weights(b, h, i, j) = fill;
    return -kInfinity<T>;
  }
  // NaN from here on when a kept score is NaN or +inf: exp(NaN), exp(inf - inf)
  T row_sum = sink == -kInfinity<T> ? T(0) : std::exp(sink - row_max);
  for (Index j = 0; j < kv_len; ++j) {
    const bool keep = kept[static_cast<std::size_t>(j)];
    weights(b, h, i, j) = keep ? std::exp(weights(b, h, i, j) - row_max) : T(0);
    if (keep) row_sum += weights(b, h, i, j);
  }
  for (Index j = 0; j < kv_len; ++j) {
    if (kept[static_cast<std::size_t>(j)]) weights(b, h, i, j) /= row_sum;
  }
  return row_max + std::log(row_sum);
}

}  // namespace

template <class T>
Forward<T> attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const Options<T>& options) {
  const Scores<T> scores{q, k, options};
  const Index batch = q.size(0), num_heads = q.size(1), q_len = q.size(2), kv_len = k.size(2);
  Forward<T> result{Tensor<T>({batch, num_heads, q_len, v.size(3)}), Tensor<T>({batch, num_heads, q_len}),
      Tensor<T>({batch, num_heads, q_len, kv_len})};
  const View<T, 4> out = result.out, weights = result.weights;
  const View<T, 3> lse = result.lse;

  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      const Index g = h / scores.group_size;  // the key/value head
      for (Index i = 0; i < q_len; ++i) {
        lse(b, h, i) = softmax_row(scores, b, h, i, weights);
        const bool empty = lse(b, h, i) == -kInfinity<T>;
        // out[i,:] = sum_j factor[i,j] * w[i,j] * v[j,:]. A masked v may hold NaN, so it is skipped, not multiplied by
        // 0.
        for (Index j = 0; j < kv_len; ++j) {
          const bool reads = empty ? options.empty_row != EmptyRow::kZero : scores.keep(b, h, i, j);
          if (!reads) continue;
          const T applied = scores.factor(b, h, i, j) * weights(b, h, i, j);
          for (Index n = 0; n < v.size(3); ++n) out(b, h, i, n) += applied * v(b, g, j, n);
        }
      }
    }
  }
  return result;
}

template <class T> Backward<T> attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v,
    View<const T, 4> dout, View<const T, 3> dlse, const Options<T>& options, const Forward<T>& forward) {
  const Scores<T> scores{q, k, options};
  const Index batch = q.size(0), num_heads = q.size(1), q_len = q.size(2), kv_len = k.size(2), head_dim = q.size(3);
  const View<const T, 4> out = forward.out, weights = forward.weights;
  const View<const T, 3> lse = forward.lse;
  Backward<T> result{Tensor<T>({batch, num_heads, q_len, head_dim}), Tensor<T>({batch, k.size(1), kv_len, head_dim}),
      Tensor<T>({batch, k.size(1), kv_len, v.size(3)}), Tensor<T>({batch, num_heads, q_len, kv_len})};
  if (!options.sinks.is_null()) result.dsinks = Tensor<T>({num_heads});
  if (!options.position_table.is_null())
    result.dposition_table = Tensor<T>({options.position_table.size(0), num_heads});
  const View<T, 4> dq = result.dq, dk = result.dk, dv = result.dv, dbias = result.dbias;

  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < num_heads; ++h) {
      const Index g = h / scores.group_size;  // the key/value head: gradients sum over its group of query heads
      for (Index i = 0; i < q_len; ++i) {
        const bool empty = lse(b, h, i) == -kInfinity<T>;
        if (empty && options.empty_row == EmptyRow::kZero) continue;
        // delta[i] = sum_j w[i,j] * dw[i,j] = dout[i].out[i];  lse adds w[i,j] * dlse[i] to ds[i,j]
        const T delta = dot(dout, b, h, i, out, h, i) - (dlse.is_null() ? T(0) : dlse(b, h, i));
        // The sink's weight exp(sink - lse) times a value of 0   =>   dsink += weight * (0 - delta[i])
        if (!empty && !options.sinks.is_null())
          result.dsinks.data()[h] -= std::exp(scores.sink(h) - lse(b, h, i)) * delta;
        for (Index j = 0; j < kv_len; ++j) {
          if (!empty && !scores.keep(b, h, i, j)) continue;
          // out[i,:] = sum_j factor * w[i,j] * v[j,:]   =>   dv[j,:] += factor * w[i,j] * dout[i,:]
          const T factor = scores.factor(b, h, i, j);
          const T w = weights(b, h, i, j);
          for (Index n = 0; n < v.size(3); ++n) dv(b, g, j, n) += factor * w * dout(b, h, i, n);
          if (empty) continue;  // the weights of an empty row do not depend on its scores
          // w = softmax(s)   =>   dw[i,j] = factor * dout[i].v[j],   ds[i,j] = w[i,j] * (dw[i,j] - delta[i])
          const T ds = w * (factor * dot(dout, b, h, i, v, g, j) - delta);
          // s = mod(y)   =>   dy = ds * mod'(y)
          const T dy = ds * scores.mod_slope(b, h, i, j);
          dbias(b, h, i, j) = dy;
          if (!options.position_table.is_null()) {
            result.dposition_table.data()[options.position_row(i, j) * num_heads + h] +=
                dy * static_cast<T>(options.position_factor(i, j));
          }
          // y = softcap(scale * q.k) + bias + position =>
          //   dq[i,:] += dx * scale * k[j,:],   dk[j,:] += dx * scale * q[i,:]
          const T dx = dy * scores.softcap_slope(b, h, i, j);
          for (Index n = 0; n < head_dim; ++n) dq(b, h, i, n) += dx * scores.scale * k(b, g, j, n);
          for (Index n = 0; n < head_dim; ++n) dk(b, g, j, n) += dx * scores.scale * q(b, h, i, n);
        }
      }
    }
  }
  return result;
}

template <class T>
Tensor<T> reduce_to_bias(const Tensor<T>& dbias, const typename View<const T, 4>::Sizes& bias_sizes) {
  Tensor<T> reduced({bias_sizes[0], bias_sizes[1], bias_sizes[2], bias_sizes[3]});
  const View<const T, 4> from = dbias;
  const View<T, 4> to = reduced;
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index h = 0; h < from.size(1); ++h) {
      for (Index i = 0; i < from.size(2); ++i) {
        for (Index j = 0; j < from.size(3); ++j) {
          to(to.size(0) > 1 ? b : 0, to.size(1) > 1 ? h : 0, to.size(2) > 1 ? i : 0, to.size(3) > 1 ? j : 0) +=
              from(b, h, i, j);
        }
      }
    }
  }
  return reduced;
}

#define QKV_REFERENCE(T)                                                                                             \
  template Forward<T> attention_forward<T>(View<const T, 4>, View<const T, 4>, View<const T, 4>, const Options<T>&); \
  template Backward<T> attention_backward<T>(View<const T, 4>, View<const T, 4>, View<const T, 4>, View<const T, 4>, \
      View<const T, 3>, const Options<T>&, const Forward<T>&);                                                       \
  template Tensor<T> reduce_to_bias<T>(const Tensor<T>&, const View<const T, 4>::Sizes&);
QKV_REFERENCE(float)
QKV_REFERENCE(double)
QKV_REFERENCE(long double)
#undef QKV_REFERENCE

}  // namespace qkv::inline v0::reference
