// The gradient of linear attention's recurrence as in a textbook (docs/maths/linear-attention.md), token by token. Not:
// forward (linear_attention.h).
#pragma once

#include "reference/linear_attention.h"

namespace qkv::inline v0::reference {

template <class N> struct LinearBackward {
  Tensor<N> dq, dk, dv;         ///< as q, k, v
  Tensor<N> dlog_decay, dbeta;  ///< [B, Hkv, Tk]
  Tensor<N> dchannels;          ///< [B, Hkv, Tk, F], with a decay per channel
  Tensor<N> dkv, dz;            ///< of the initial state
};

/// Gradients of sum(out * dout) + sum(final state * (dkv, dz)). dkv [B, Hkv, F, Dv] and dz [B, Hkv, F] may be null.
template <class N> LinearBackward<N> linear_attention_backward(View<const N, 4> q, View<const N, 4> k,
    View<const N, 4> v, View<const N, 4> dout, View<const N, 4> dkv, View<const N, 3> dz,
    const LinearOptions<N>& options) {
  using Head = LinearHead<N>;
  const auto at = [](Index n) { return Head::at(n); };
  const Index batch = q.size(0), kv_heads = v.size(1), q_len = q.size(2), kv_len = k.size(2), width = v.size(3);
  const LinearForward<N> forward = linear_attention_recurrent(q, k, v, options);
  const View<const N, 4> out = forward.out;
  const View<const N, 3> normalizer = forward.normalizer;
  LinearBackward<N> result{Tensor<N>(std::vector<Index>(q.sizes().begin(), q.sizes().end())),
      Tensor<N>(std::vector<Index>(k.sizes().begin(), k.sizes().end())),
      Tensor<N>(std::vector<Index>(v.sizes().begin(), v.sizes().end())), Tensor<N>({batch, kv_heads, kv_len}),
      Tensor<N>({batch, kv_heads, kv_len}),
      Tensor<N>({batch, kv_heads, kv_len, options.channels.is_null() ? 0 : forward.kv.size(2)}),
      Tensor<N>(forward.kv.sizes()), Tensor<N>(forward.z.sizes())};
  const View<N, 4> dq = result.dq, dk = result.dk, dv = result.dv, dinitial = result.dkv, dchannels = result.dchannels;
  const View<N, 3> dlog_decay = result.dlog_decay, dbeta = result.dbeta, dinitial_z = result.dz;
  for (Index b = 0; b < batch; ++b) {
    for (Index g = 0; g < kv_heads; ++g) {
      const Head head(q, k, v, options, b, g);
      const Index features = head.features();
      std::vector<typename Head::State> states{head.initial()};  // states[t]: before token t
      for (Index t = 0; t < kv_len; ++t) states.push_back(head.step(states.back(), t));
      typename Head::State d = head.initial();  // gradient of the state after the token
      for (Index f = 0; f < features; ++f) {
        for (Index e = 0; e < width; ++e) d.s(f, e, width) = dkv.is_null() ? N(0) : dkv(b, g, f, e);
        d.z[at(f)] = dz.is_null() ? N(0) : dz(b, g, f);
      }
      // out = scale * S^T phi(q) (/ n),  n = scale * z.phi(q)
      const auto read_backward = [&](const typename Head::State& state, Index r, Index t) {
        const Index h = head.head(r);
        const N n = normalizer(b, h, t);
        if (options.normalized && options.vanishes(n)) return;
        const typename Head::Row query = head.phi(q, head.query_head(r), t);
        typename Head::Row gradient, dquery(at(features), N(0));  // of the sum that n divides, and of n
        N dn = N(0);
        for (Index e = 0; e < width; ++e) {
          gradient.push_back(options.normalized ? dout(b, h, t, e) / n : dout(b, h, t, e));
          if (options.normalized) dn -= gradient.back() * out(b, h, t, e);
        }
        for (Index f = 0; f < features; ++f) {
          for (Index e = 0; e < width; ++e) {
            dquery[at(f)] += head.scale() * state.s(f, e, width) * gradient[at(e)];
            d.s(f, e, width) += head.scale() * query[at(f)] * gradient[at(e)];
          }
          dquery[at(f)] += head.scale() * state.z[at(f)] * dn;
          d.z[at(f)] += head.scale() * query[at(f)] * dn;
        }
        head.phi_backward(q, head.query_head(r), t, dquery, dq);
      };
      for (Index t = q_len - 1; !options.causal && t >= 0; --t) {
        for (Index r = 0; r < head.group_size(); ++r) read_backward(states.back(), r, t);
      }
      for (Index t = kv_len - 1; t >= 0; --t) {
        for (Index r = 0; options.causal && r < head.group_size(); ++r) read_backward(states[at(t + 1)], r, t);
        const typename Head::State& before = states[at(t)];
        const typename Head::Row key = head.phi(k, head.key_head(), t), decay = head.decays(t),
                                 w = head.residual(before, key, decay, t);
        typename Head::Row dkey = d.z;
        typename Head::State dbefore = d;
        typename Head::Row gathered(at(head.channels() ? features : 1), N(0));
        const auto ddecay = [&](Index f) -> N& { return gathered[head.channels() ? at(f) : 0]; };
        for (Index f = 0; f < features; ++f) {
          for (Index e = 0; e < width; ++e) dbefore.s(f, e, width) = decay[at(f)] * d.s(f, e, width);
          dbefore.z[at(f)] = decay[at(f)] * d.z[at(f)];
          ddecay(f) += d.z[at(f)] * before.z[at(f)];
        }
        for (Index e = 0; e < width; ++e) {
          // S[t] = decay * S[t-1] + phi(k) u^T,  u = beta * w,  w = v - decay * S[t-1]^T phi(k)
          N du = N(0), du_again = N(0);  // equal numbers; the second is what the recurrence carries on
          const N beta = head.delta() ? head.beta(t) : N(1);
          for (Index f = 0; f < features; ++f) {
            du += d.s(f, e, width) * key[at(f)];
            du_again += settled(d.s(f, e, width)) * key[at(f)];
            dkey[at(f)] += d.s(f, e, width) * beta * w[at(e)];
            ddecay(f) += d.s(f, e, width) * before.s(f, e, width);
          }
          dv(b, g, t, e) = beta * du;
          if (!head.delta()) continue;
          dbeta(b, g, t) += du * w[at(e)];
          for (Index f = 0; f < features; ++f) {
            dkey[at(f)] -= decay[at(f)] * before.s(f, e, width) * beta * du;
            dbefore.s(f, e, width) -= decay[at(f)] * key[at(f)] * beta * du_again;
            ddecay(f) -= before.s(f, e, width) * key[at(f)] * beta * du;
          }
        }
        for (Index f = 0; head.channels() && f < features; ++f) dchannels(b, g, t, f) = decay[at(f)] * ddecay(f);
        if (!head.channels()) dlog_decay(b, g, t) = decay[0] * ddecay(0);
        head.phi_backward(k, head.key_head(), t, dkey, dk);
        d = dbefore;
      }
      for (Index f = 0; f < features; ++f) {
        for (Index e = 0; e < width; ++e) dinitial(b, g, f, e) = d.s(f, e, width);
        dinitial_z(b, g, f) = d.z[at(f)];
      }
    }
  }
  return result;
}

}  // namespace qkv::inline v0::reference
