// Linear attention as in a textbook (formulas of qkv/linear_attention.h): token by token as a recurrence, and pair by
// pair as a square. Read it before the chunked kernels, whose oracle it is.
#pragma once

#include "reference/linear_head.h"

namespace qkv::inline v0::reference {

template <class N> struct LinearForward {
  Tensor<N> out;         ///< [B, H, Tq, Dv]
  Tensor<N> normalizer;  ///< [B, H, Tq]
  Tensor<N> kv, z;       ///< final state [B, Hkv, F, Dv], [B, Hkv, F]
};

/// Heads of out: of q, or of v where they share those of q and k.
template <class N> Index linear_heads(const View<const N, 4>& q, const View<const N, 4>& k, const View<const N, 4>& v) {
  return v.size(1) > k.size(1) ? v.size(1) : q.size(1);
}

/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] (or value groups). Shapes are not checked.
template <class N> LinearForward<N> linear_attention_recurrent(
    View<const N, 4> q, View<const N, 4> k, View<const N, 4> v, const LinearOptions<N>& options) {
  const Index batch = q.size(0), kv_heads = v.size(1), heads = linear_heads(q, k, v), q_len = q.size(2),
              kv_len = k.size(2), width = v.size(3);
  const Index features = options.map == FeatureMap::kSoftmax ? options.features.size(0) : q.size(3);
  LinearForward<N> result{Tensor<N>({batch, heads, q_len, width}), Tensor<N>({batch, heads, q_len}),
      Tensor<N>({batch, kv_heads, features, width}), Tensor<N>({batch, kv_heads, features})};
  const View<N, 4> out = result.out, kv = result.kv;
  const View<N, 3> normalizer = result.normalizer, z = result.z;
  for (Index b = 0; b < batch; ++b) {
    for (Index g = 0; g < kv_heads; ++g) {
      const LinearHead<N> head(q, k, v, options, b, g);
      auto state = head.initial();
      for (Index t = 0; t < kv_len; ++t) {
        state = head.step(state, t);
        for (Index r = 0; options.causal && r < head.group_size(); ++r) head.read(state, r, t, out, normalizer);
      }
      for (Index t = 0; !options.causal && t < q_len; ++t) {
        for (Index r = 0; r < head.group_size(); ++r) head.read(state, r, t, out, normalizer);
      }
      for (Index f = 0; f < features; ++f) {
        for (Index e = 0; e < width; ++e) kv(b, g, f, e) = state.s(f, e, width);
        z(b, g, f) = state.z[LinearHead<N>::at(f)];
      }
    }
  }
  return result;
}

/// The same as a sum over pairs of tokens; the final state stays 0.
template <class N> LinearForward<N> linear_attention_quadratic(
    View<const N, 4> q, View<const N, 4> k, View<const N, 4> v, const LinearOptions<N>& options) {
  using Head = LinearHead<N>;
  using std::exp;
  const Index batch = q.size(0), kv_heads = v.size(1), heads = linear_heads(q, k, v), q_len = q.size(2),
              kv_len = k.size(2), width = v.size(3);
  LinearForward<N> result{Tensor<N>({batch, heads, q_len, width}), Tensor<N>({batch, heads, q_len}), {}, {}};
  const View<N, 4> out = result.out;
  const View<N, 3> normalizer = result.normalizer;
  for (Index b = 0; b < batch; ++b) {
    for (Index g = 0; g < kv_heads; ++g) {
      const Head head(q, k, v, options, b, g);
      const auto first = head.initial();
      std::vector<typename Head::Row> keys;
      for (Index j = 0; j < kv_len; ++j) keys.push_back(head.phi(k, head.key_head(), j));
      // c[j+1][f] = exp(sum of log_decay over j+1 .. i): from key j to query i; c[0]: from the initial state
      const auto decays_to = [&](Index i) {
        const typename Head::Row ones(Head::at(head.features()), N(1));
        std::vector<typename Head::Row> c(Head::at(std::max(i, kv_len - 1) + 2), ones);
        for (Index f = 0; f < (head.channels() ? head.features() : 1); ++f) {
          N sum = N(0);
          for (Index j = i - 1; options.causal && j >= -1; --j) {
            sum += head.log_decay(j + 1, f);
            c[Head::at(j + 1)][Head::at(f)] = settled(N(exp(sum)));
          }
        }
        for (auto& row : c) {
          if (!head.channels()) std::fill(row.begin(), row.end(), row[0]);
        }
        return c;
      };
      /// sum over f of c[f] * x[f] * y[f]
      const auto dot = [&](const typename Head::Row& c, const typename Head::Row& x, const typename Head::Row& y) {
        N sum = N(0);
        for (std::size_t f = 0; f < x.size(); ++f) sum += c[f] * x[f] * y[f];
        return sum;
      };
      /// sum over f of c[f] * x[f] * S[f, e] for the initial state S
      const auto of_first = [&](const typename Head::Row& c, const typename Head::Row& x, Index e) {
        N sum = N(0);
        for (Index f = 0; f < head.features(); ++f) sum += c[Head::at(f)] * x[Head::at(f)] * first.s(f, e, width);
        return sum;
      };
      Tensor<N> values({kv_len, width});  // u
      const View<N, 2> u = values;
      for (Index j = 0; j < kv_len; ++j) {
        for (Index e = 0; e < width; ++e) u(j, e) = head.value(j, e);
        if (!head.delta()) continue;
        const std::vector<typename Head::Row> c = decays_to(j);
        const typename Head::Row& key = keys[Head::at(j)];
        for (Index e = 0; e < width; ++e) u(j, e) -= of_first(c[0], key, e);
        for (Index t = 0; t < j; ++t) {
          const N product = dot(c[Head::at(t + 1)], keys[Head::at(t)], key);
          for (Index e = 0; e < width; ++e) u(j, e) -= product * settled(u(t, e));
        }
        for (Index e = 0; e < width; ++e) u(j, e) = head.beta(j) * u(j, e);
      }
      for (Index r = 0; r < head.group_size(); ++r) {
        const Index h = head.head(r);
        for (Index i = 0; i < q_len; ++i) {
          const typename Head::Row query = head.phi(q, head.query_head(r), i);
          const std::vector<typename Head::Row> c = decays_to(i);
          const Index visible = options.causal ? i + 1 : kv_len;
          N n = head.scale() * dot(c[0], query, first.z);
          for (Index e = 0; e < width; ++e) out(b, h, i, e) = head.scale() * of_first(c[0], query, e);
          for (Index j = 0; j < visible; ++j) {
            const N weight = head.scale() * dot(c[Head::at(j + 1)], query, keys[Head::at(j)]);
            n += weight;
            for (Index e = 0; e < width; ++e) out(b, h, i, e) += weight * u(j, e);
          }
          normalizer(b, h, i) = n;
          for (Index e = 0; options.normalized && e < width; ++e) {
            out(b, h, i, e) = options.vanishes(n) ? N(0) : out(b, h, i, e) / n;
          }
        }
      }
    }
  }
  return result;
}

}  // namespace qkv::inline v0::reference
