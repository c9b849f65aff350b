// One key/value head of linear attention as in a textbook (formulas of qkv/linear_attention.h): feature maps, decay,
// the delta rule, a step of the recurrence.
//
// N is the type of every number: float (the naive form), double or long double (the oracles), or a type that tracks
// magnitudes for error bounds (tests/linear/measured.h), which is why everything is a template and why `settled`
// exists.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "qkv/linear_attention.h"

namespace qkv::inline v0::reference {

template <class N> struct LinearOptions {
  FeatureMap map = FeatureMap::kEluPlusOne;
  View<const N, 2> features;  ///< [F, D], kSoftmax only
  bool causal = false, normalized = true;
  std::optional<double> scale;
  View<const N, 3> log_decay, beta;  ///< [B|1, Hkv|1, T|1] or null
  View<const N, 4> channels{};       ///< a decay per channel: log_decay [B|1, Hkv|1, T|1, F] or null
  View<const N, 4> kv;               ///< initial state [B, Hkv, F, Dv] or null
  View<const N, 3> z;                ///< [B, Hkv, F] or null
  double smallest = 0;               ///< the smallest normal number of what is held against this

  /// A normalizer by which nothing can be divided.
  bool vanishes(N n) const { return n == N(0) || (n < N(smallest) && n > N(-smallest)); }
};

/// A number that a recurrence carries from token to token: returned unchanged. A type that tracks magnitudes restarts
/// here from the value: multiplied over a thousand tokens magnitudes would overflow, while the errors of a contraction
/// die out.
template <class N> N settled(N x) { return x; }

/// One key/value head: what both directions and both forms share.
template <class N> class LinearHead {
 public:
  using Row = std::vector<N>;

  LinearHead(
      View<const N, 4> q, View<const N, 4> k, View<const N, 4> v, const LinearOptions<N>& options, Index b, Index g)
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
    if (o_.map == FeatureMap::kSoftmax) {
      // exp(r.y - |y|^2 / 2) / sqrt(F), y = sqrt(scale) x
      const N root = sqrt(softmax_scale());
      N norm = N(0);
      for (Index d = 0; d < x.size(3); ++d) norm += x(b_, h, t, d) * x(b_, h, t, d);
      for (Index f = 0; f < features(); ++f) {
        N sum = N(0);
        for (Index d = 0; d < x.size(3); ++d) sum += root * o_.features(f, d) * x(b_, h, t, d);
        y.push_back(exp(sum - softmax_scale() * norm / N(2)) / sqrt(N(static_cast<double>(features()))));
      }
      return y;
    }
    const N length = o_.map == FeatureMap::kUnit ? length_of(x, h, t) : N(1);
    for (Index f = 0; f < features(); ++f) {
      const N value = x(b_, h, t, f);
      if (o_.map == FeatureMap::kUnit) {
        y.push_back(value / length);
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
    const N root = sqrt(softmax_scale()), length = o_.map == FeatureMap::kUnit ? length_of(x, h, t) : N(1);
    N along = N(0);  // kUnit: phi.dphi
    for (Index d = 0; o_.map == FeatureMap::kUnit && d < x.size(3); ++d) along += y[at(d)] * dphi[at(d)];
    for (Index d = 0; d < x.size(3); ++d) {
      const N value = x(b_, h, t, d);
      N& to = dx(b_, h, t, d);
      if (o_.map == FeatureMap::kSoftmax) {
        for (Index f = 0; f < features(); ++f) {
          to += dphi[at(f)] * y[at(f)] * (root * o_.features(f, d) - softmax_scale() * value);
        }
      } else if (o_.map == FeatureMap::kUnit) {
        to += (dphi[at(d)] - y[at(d)] * along) / length;
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
  bool channels() const { return !o_.channels.is_null(); }
  /// Of channel f; without a decay per channel the same for all.
  N log_decay(Index t, Index f) const {
    if (!channels()) return o_.log_decay.is_null() ? N(0) : of_token(o_.log_decay, t);
    const View<const N, 4>& view = o_.channels;
    return view(view.size(0) > 1 ? b_ : 0, view.size(1) > 1 ? g_ : 0, view.size(2) > 1 ? t : 0, f);
  }
  /// Of every channel.
  Row decays(Index t) const {
    using std::exp;
    Row decay(at(features()), N(1));
    if (o_.log_decay.is_null() && !channels()) return decay;
    for (Index f = 0; f < features(); ++f) {
      decay[at(f)] = f > 0 && !channels() ? decay[0] : settled(N(exp(log_decay(t, f))));
    }
    return decay;
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
  Row residual(const State& before, const Row& kf, const Row& decay, Index t) const {
    Row w;
    for (Index e = 0; e < width(); ++e) {
      N sum = value(t, e);
      for (Index f = 0; delta() && f < features(); ++f)
        sum -= decay[at(f)] * settled(before.s(f, e, width())) * kf[at(f)];
      w.push_back(sum);
    }
    return w;
  }

  /// S[t] = decay * S[t-1] + phi(k[t]) u[t]^T,  z[t] = decay * z[t-1] + phi(k[t])
  State step(const State& before, Index t) const {
    const Row kf = phi(k_, key_head(), t), decay = decays(t), w = residual(before, kf, decay, t);
    State after = before;
    for (Index f = 0; f < features(); ++f) {
      for (Index e = 0; e < width(); ++e) {
        const N u = delta() ? beta(t) * w[at(e)] : w[at(e)];
        after.s(f, e, width()) = decay[at(f)] * before.s(f, e, width()) + kf[at(f)] * u;
      }
      after.z[at(f)] = decay[at(f)] * before.z[at(f)] + kf[at(f)];
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
      out(b_, head(r), t, e) = !o_.normalized ? sum : o_.vanishes(n) ? N(0) : sum / n;
    }
  }

 private:
  View<const N, 4> q_, k_, v_;
  const LinearOptions<N>& o_;
  Index b_, g_;
};

}  // namespace qkv::inline v0::reference
