// Linear attention as in a textbook (formulas of qkv/linear_attention.h): token by token as a recurrence, pair by pair as a
// square, and the gradient of the recurrence. Read it before the chunked kernels, whose oracle it is. Not: fast, or checked.
//
// N is the type of every number: float (the naive form), double or long double (the oracles), or a type that tracks magnitudes
// for error bounds (tests/linear/measured.h), which is why everything is a template and why `settled` exists.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "qkv/linear_attention.h"

namespace qkv::inline v0::reference {

template <class N>
struct LinearOptions {
  FeatureMap map = FeatureMap::kEluPlusOne;
  View<const N, 2> features;  ///< [F, D], kSoftmax only
  bool causal = false, normalized = true;
  std::optional<double> scale;
  View<const N, 3> log_decay, beta;  ///< [B|1, Hkv|1, T|1] or null
  View<const N, 4> kv;               ///< initial state [B, Hkv, F, Dv] or null
  View<const N, 3> z;                ///< [B, Hkv, F] or null
};

template <class N>
struct LinearForward {
  Tensor<N> out;         ///< [B, H, Tq, Dv]
  Tensor<N> normalizer;  ///< [B, H, Tq]
  Tensor<N> kv, z;       ///< final state [B, Hkv, F, Dv], [B, Hkv, F]
};

template <class N>
struct LinearBackward {
  Tensor<N> dq, dk, dv;         ///< as q, k, v
  Tensor<N> dlog_decay, dbeta;  ///< [B, Hkv, Tk]
  Tensor<N> dkv, dz;            ///< of the initial state
};

/// A number that a recurrence carries from token to token: returned unchanged. A type that tracks magnitudes restarts here from
/// the value: multiplied over a thousand tokens magnitudes would overflow, while the errors of a contraction die out.
template <class N>
N settled(N x) {
  return x;
}

/// One key/value head: what both directions and both forms share.
template <class N>
class LinearHead {
 public:
  using Row = std::vector<N>;

  LinearHead(View<const N, 4> q, View<const N, 4> k, View<const N, 4> v, const LinearOptions<N>& options, Index b, Index g)
      : q_(q), k_(k), v_(v), o_(options), b_(b), g_(g) {}

  Index group_size() const { return value_group() > 1 ? 1 : q_.size(1) / k_.size(1); }
  Index head(Index r) const { return g_ * group_size() + r; }  // of out
  /// Heads of v that share a head of q and k.
  Index value_group() const { return v_.size(1) / k_.size(1); }
  Index query_head(Index r) const { return head(r) / value_group(); }
  Index key_head() const { return g_ / value_group(); }
  Index features() const { return o_.map == FeatureMap::kSoftmax ? o_.features.size(0) : q_.size(3); }
  Index width() const { return v_.size(3); }

  N softmax_scale() const { return N(o_.scale ? *o_.scale : 1 / std::sqrt(static_cast<double>(q_.size(3)))); }
  /// The scale of phi(q).phi(k).
  N scale() const { return N(o_.map == FeatureMap::kSoftmax ? 1.0 : o_.scale.value_or(1.0)); }

  Row phi(const View<const N, 4>& x, Index h, Index t) const {
    using std::exp, std::sqrt, std::log;
    Row y;
    for (Index f = 0; f < features(); ++f) {
      if (o_.map == FeatureMap::kSoftmax) {
        // exp(r.y - |y|^2 / 2) / sqrt(F), y = sqrt(scale) x
        N sum = N(0), norm = N(0);
        for (Index d = 0; d < x.size(3); ++d) sum += sqrt(softmax_scale()) * o_.features(f, d) * x(b_, h, t, d);
        for (Index d = 0; d < x.size(3); ++d) norm += x(b_, h, t, d) * x(b_, h, t, d);
        y.push_back(exp(sum - softmax_scale() * norm / N(2)) / sqrt(N(static_cast<double>(features()))));
        continue;
      }
      const N value = x(b_, h, t, f);
      if (o_.map == FeatureMap::kUnit) {
        y.push_back(value / length_of(x, h, t));
      } else if (o_.map == FeatureMap::kRelu) {
        y.push_back(value < N(0) ? N(0) : value);
      } else if (o_.map == FeatureMap::kEluPlusOne) {
        y.push_back(value > N(0) ? value + N(1) : exp(value));
      } else {
        y.push_back(value);
      }
    }
    return y;
  }

  /// sqrt(|x|^2 + 1e-6)
  N length_of(const View<const N, 4>& x, Index h, Index t) const {
    using std::sqrt;
    N sum = N(1e-6);
    for (Index d = 0; d < x.size(3); ++d) sum += x(b_, h, t, d) * x(b_, h, t, d);
    return sqrt(sum);
  }

  /// dx += (d phi / dx)^T dphi
  void phi_backward(const View<const N, 4>& x, Index h, Index t, const Row& dphi, const View<N, 4>& dx) const {
    using std::exp, std::sqrt;
    const Row y = phi(x, h, t);
    N along = N(0);  // kUnit: phi.dphi
    for (Index d = 0; o_.map == FeatureMap::kUnit && d < x.size(3); ++d) along += y[at(d)] * dphi[at(d)];
    for (Index d = 0; d < x.size(3); ++d) {
      const N value = x(b_, h, t, d);
      N& to = dx(b_, h, t, d);
      if (o_.map == FeatureMap::kSoftmax) {
        for (Index f = 0; f < features(); ++f) {
          to += dphi[at(f)] * y[at(f)] * (sqrt(softmax_scale()) * o_.features(f, d) - softmax_scale() * value);
        }
      } else if (o_.map == FeatureMap::kUnit) {
        to += (dphi[at(d)] - y[at(d)] * along) / length_of(x, h, t);
      } else if (o_.map == FeatureMap::kRelu) {
        to += value > N(0) ? dphi[at(d)] : N(0);
      } else if (o_.map == FeatureMap::kEluPlusOne) {
        to += value > N(0) ? dphi[at(d)] : exp(value) * dphi[at(d)];
      } else {
        to += dphi[at(d)];
      }
    }
  }

  N of_token(const View<const N, 3>& view, Index t) const {
    return view(view.size(0) > 1 ? b_ : 0, view.size(1) > 1 ? g_ : 0, view.size(2) > 1 ? t : 0);
  }
  N log_decay(Index t) const { return o_.log_decay.is_null() ? N(0) : of_token(o_.log_decay, t); }
  N decay(Index t) const {
    using std::exp;
    return o_.log_decay.is_null() ? N(1) : settled(N(exp(of_token(o_.log_decay, t))));
  }
  bool delta() const { return !o_.beta.is_null(); }
  N beta(Index t) const { return of_token(o_.beta, t); }
  N value(Index t, Index e) const { return v_(b_, g_, t, e); }

  static std::size_t at(Index n) { return static_cast<std::size_t>(n); }

  /// S [F][Dv] and z [F].
  struct State {
    Row kv, z;
    N& s(Index f, Index e, Index width) { return kv[at(f * width + e)]; }
    const N& s(Index f, Index e, Index width) const { return kv[at(f * width + e)]; }
  };
  State initial() const {
    State state{Row(at(features() * width()), N(0)), Row(at(features()), N(0))};
    if (o_.kv.is_null()) return state;
    for (Index f = 0; f < features(); ++f) {
      for (Index e = 0; e < width(); ++e) state.s(f, e, width()) = o_.kv(b_, g_, f, e);
      if (!o_.z.is_null()) state.z[at(f)] = o_.z(b_, g_, f);
    }
    return state;
  }

  /// w = v[t] - decay * S^T phi(k[t]), what the delta rule has not stored yet; without the delta rule v[t].
  Row residual(const State& before, const Row& kf, Index t) const {
    Row w;
    for (Index e = 0; e < width(); ++e) {
      N sum = value(t, e);
      for (Index f = 0; delta() && f < features(); ++f) sum -= decay(t) * settled(before.s(f, e, width())) * kf[at(f)];
      w.push_back(sum);
    }
    return w;
  }

  /// S[t] = decay * S[t-1] + phi(k[t]) u[t]^T,  z[t] = decay * z[t-1] + phi(k[t])
  State step(const State& before, Index t) const {
    const Row kf = phi(k_, key_head(), t), w = residual(before, kf, t);
    State after = before;
    for (Index f = 0; f < features(); ++f) {
      for (Index e = 0; e < width(); ++e) {
        const N u = delta() ? beta(t) * w[at(e)] : w[at(e)];
        after.s(f, e, width()) = decay(t) * before.s(f, e, width()) + kf[at(f)] * u;
      }
      after.z[at(f)] = decay(t) * before.z[at(f)] + kf[at(f)];
    }
    return after;
  }

  /// out = scale * S^T phi(q) (/ n),  n = scale * z.phi(q)
  void read(const State& state, Index r, Index t, const View<N, 4>& out, const View<N, 3>& normalizer) const {
    const Row qf = phi(q_, query_head(r), t);
    N n = N(0);
    for (Index f = 0; f < features(); ++f) n += scale() * qf[at(f)] * state.z[at(f)];
    normalizer(b_, head(r), t) = n;
    for (Index e = 0; e < width(); ++e) {
      N sum = N(0);
      for (Index f = 0; f < features(); ++f) sum += scale() * qf[at(f)] * state.s(f, e, width());
      out(b_, head(r), t, e) = !o_.normalized ? sum : n == N(0) ? N(0) : sum / n;
    }
  }

 private:
  View<const N, 4> q_, k_, v_;
  const LinearOptions<N>& o_;
  Index b_, g_;
};

/// Heads of out: of q, or of v where they share those of q and k.
template <class N>
Index linear_heads(const View<const N, 4>& q, const View<const N, 4>& k, const View<const N, 4>& v) {
  return v.size(1) > k.size(1) ? v.size(1) : q.size(1);
}

/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] (or value groups). Shapes are not checked.
template <class N>
LinearForward<N> linear_attention_recurrent(View<const N, 4> q, View<const N, 4> k, View<const N, 4> v,
                                            const LinearOptions<N>& options) {
  const Index batch = q.size(0), kv_heads = v.size(1), heads = linear_heads(q, k, v), q_len = q.size(2), kv_len = k.size(2),
              width = v.size(3);
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
template <class N>
LinearForward<N> linear_attention_quadratic(View<const N, 4> q, View<const N, 4> k, View<const N, 4> v,
                                            const LinearOptions<N>& options) {
  using Head = LinearHead<N>;
  using std::exp;
  const Index batch = q.size(0), kv_heads = v.size(1), heads = linear_heads(q, k, v), q_len = q.size(2), kv_len = k.size(2),
              width = v.size(3);
  LinearForward<N> result{Tensor<N>({batch, heads, q_len, width}), Tensor<N>({batch, heads, q_len}), {}, {}};
  const View<N, 4> out = result.out;
  const View<N, 3> normalizer = result.normalizer;
  for (Index b = 0; b < batch; ++b) {
    for (Index g = 0; g < kv_heads; ++g) {
      const Head head(q, k, v, options, b, g);
      const auto first = head.initial();
      std::vector<typename Head::Row> keys;
      for (Index j = 0; j < kv_len; ++j) keys.push_back(head.phi(k, head.key_head(), j));
      // c[j+1] = exp(sum of log_decay over j+1 .. i): from key j to query i; c[0]: from the initial state
      const auto decays_to = [&](Index i) {
        typename Head::Row c(Head::at(std::max(i, kv_len - 1) + 2), N(1));
        N sum = N(0);
        for (Index j = i - 1; options.causal && j >= -1; --j) {
          sum += head.log_decay(j + 1);
          c[Head::at(j + 1)] = settled(N(exp(sum)));
        }
        return c;
      };
      const auto dot = [&](const typename Head::Row& a, const typename Head::Row& c) {
        N sum = N(0);
        for (std::size_t f = 0; f < a.size(); ++f) sum += a[f] * c[f];
        return sum;
      };
      /// sum over f of x[f] * S[f, e] for the initial state S
      const auto of_first = [&](const typename Head::Row& x, Index e) {
        N sum = N(0);
        for (Index f = 0; f < head.features(); ++f) sum += x[Head::at(f)] * first.s(f, e, width);
        return sum;
      };
      Tensor<N> values({kv_len, width});  // u
      const View<N, 2> u = values;
      for (Index j = 0; j < kv_len; ++j) {
        for (Index e = 0; e < width; ++e) u(j, e) = head.value(j, e);
        if (!head.delta()) continue;
        const typename Head::Row c = decays_to(j), &key = keys[Head::at(j)];
        for (Index e = 0; e < width; ++e) u(j, e) -= c[0] * of_first(key, e);
        for (Index t = 0; t < j; ++t) {
          const N product = c[Head::at(t + 1)] * dot(keys[Head::at(t)], key);
          for (Index e = 0; e < width; ++e) u(j, e) -= product * settled(u(t, e));
        }
        for (Index e = 0; e < width; ++e) u(j, e) = head.beta(j) * u(j, e);
      }
      for (Index r = 0; r < head.group_size(); ++r) {
        const Index h = head.head(r);
        for (Index i = 0; i < q_len; ++i) {
          const typename Head::Row query = head.phi(q, head.query_head(r), i), c = decays_to(i);
          const Index seen = options.causal ? i + 1 : kv_len;
          N n = head.scale() * c[0] * dot(query, first.z);
          for (Index e = 0; e < width; ++e) out(b, h, i, e) = head.scale() * c[0] * of_first(query, e);
          for (Index j = 0; j < seen; ++j) {
            const N weight = head.scale() * c[Head::at(j + 1)] * dot(query, keys[Head::at(j)]);
            n += weight;
            for (Index e = 0; e < width; ++e) out(b, h, i, e) += weight * u(j, e);
          }
          normalizer(b, h, i) = n;
          for (Index e = 0; options.normalized && e < width; ++e) {
            out(b, h, i, e) = n == N(0) ? N(0) : out(b, h, i, e) / n;
          }
        }
      }
    }
  }
  return result;
}

/// Gradients of sum(out * dout) + sum(final state * (dkv, dz)). dkv [B, Hkv, F, Dv] and dz [B, Hkv, F] may be null.
template <class N>
LinearBackward<N> linear_attention_backward(View<const N, 4> q, View<const N, 4> k, View<const N, 4> v, View<const N, 4> dout,
                                            View<const N, 4> dkv, View<const N, 3> dz, const LinearOptions<N>& options) {
  using Head = LinearHead<N>;
  const auto at = [](Index n) { return Head::at(n); };
  const Index batch = q.size(0), kv_heads = v.size(1), q_len = q.size(2), kv_len = k.size(2), width = v.size(3);
  const LinearForward<N> forward = linear_attention_recurrent(q, k, v, options);
  const View<const N, 4> out = forward.out;
  const View<const N, 3> normalizer = forward.normalizer;
  LinearBackward<N> result{Tensor<N>(std::vector<Index>(q.sizes().begin(), q.sizes().end())),
                           Tensor<N>(std::vector<Index>(k.sizes().begin(), k.sizes().end())),
                           Tensor<N>(std::vector<Index>(v.sizes().begin(), v.sizes().end())),
                           Tensor<N>({batch, kv_heads, kv_len}),
                           Tensor<N>({batch, kv_heads, kv_len}),
                           Tensor<N>(forward.kv.sizes()),
                           Tensor<N>(forward.z.sizes())};
  const View<N, 4> dq = result.dq, dk = result.dk, dv = result.dv, dinitial = result.dkv;
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
        if (options.normalized && n == N(0)) return;
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
        const typename Head::Row key = head.phi(k, head.key_head(), t), w = head.residual(before, key, t);
        typename Head::Row dkey = d.z;
        typename Head::State dbefore = d;
        N ddecay = N(0);
        for (Index f = 0; f < features; ++f) {
          for (Index e = 0; e < width; ++e) dbefore.s(f, e, width) = head.decay(t) * d.s(f, e, width);
          dbefore.z[at(f)] = head.decay(t) * d.z[at(f)];
          ddecay += d.z[at(f)] * before.z[at(f)];
        }
        for (Index e = 0; e < width; ++e) {
          // S[t] = decay * S[t-1] + phi(k) u^T,  u = beta * w,  w = v - decay * S[t-1]^T phi(k)
          N du = N(0), du_again = N(0);  // equal numbers; the second is what the recurrence carries on
          const N beta = head.delta() ? head.beta(t) : N(1);
          for (Index f = 0; f < features; ++f) {
            du += d.s(f, e, width) * key[at(f)];
            du_again += settled(d.s(f, e, width)) * key[at(f)];
            dkey[at(f)] += d.s(f, e, width) * beta * w[at(e)];
            ddecay += d.s(f, e, width) * before.s(f, e, width);
          }
          dv(b, g, t, e) = beta * du;
          if (!head.delta()) continue;
          dbeta(b, g, t) += du * w[at(e)];
          for (Index f = 0; f < features; ++f) {
            dkey[at(f)] -= head.decay(t) * before.s(f, e, width) * beta * du;
            dbefore.s(f, e, width) -= head.decay(t) * key[at(f)] * beta * du_again;
            ddecay -= before.s(f, e, width) * key[at(f)] * beta * du;
          }
        }
        dlog_decay(b, g, t) = head.decay(t) * ddecay;
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
