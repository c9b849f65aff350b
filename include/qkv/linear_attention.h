// Linear attention forward and backward, O(T D Dv): softmax's exp(q.k) is replaced by a product of feature maps, so
// that keys and values are summed once into a state of D x Dv numbers. Chunked, bit-identical for any number of
// threads.
//
//   a[i,j]  = scale * phi(q[i]).phi(k[j])                          phi: FeatureMap, F features
//   c[i,j]  = exp(log_decay[j+1] + ... + log_decay[i])             1 without decay; causal only
//   n[i]    = sum_j c[i,j] * a[i,j]                                over all j; causal: j <= i
//   out[i]  = sum_j c[i,j] * a[i,j] * u[j]  (/ n[i])     divided where normalized; 0 where n[i] is 0 or subnormal
//   u[j]    = v[j]; with the delta rule (beta)
//             beta[j] * (v[j] - exp(log_decay[j]) * S[j-1]^T phi(k[j]))
// The same sums as a recurrence, which defines what a state holds:
//   S[i]    = exp(log_decay[i]) * S[i-1] + phi(k[i]) u[i]^T        [F, Dv]   out[i] = scale * S[i]^T phi(q[i]) (/ n[i])
//   z[i]    = exp(log_decay[i]) * z[i-1] + phi(k[i])               [F]       n[i]   = scale * z[i].phi(q[i])
// A decay per channel (log_decay_channels) instead of exp(log_decay) is a diagonal matrix on the rows of S.
// A causal sum is computed in chunks of tokens: within a chunk by the quadratic form, between chunks by the state.
//
// Shapes: B batch, H query heads, Hkv key/value heads (H % Hkv == 0; head h reads h / (H / Hkv)), Tq queries, Tk keys
// (equal when causal), D width of q and k, F features (D unless the map says otherwise), Dv width of v. Value groups
// (Gated DeltaNet, Mamba-2): where q and k have Hk heads each, v may have any multiple Hv of them; head h of v then
// reads q and k of head h / (Hv / Hk), and Hv stands for both H and Hkv below, except in q, k, dq and dk. Views are
// strided; the last axis of q, k, v, out and their gradients has stride 1. Katharopoulos 2020 (arXiv:2006.16236):
// elu+1, the recurrence. Choromanski 2021 (2009.14794): random features. Sun 2023 (2307.08621), RetNet: one decay per
// head. Dao and Gu 2024 (2405.21060), Mamba-2, and Yang 2024 (2312.06635), GLA with a scalar gate: one decay per head
// and token. Yang 2024 (2406.06484): the delta rule in chunks; Yang 2024 (2412.06464): with decay. Kimi Team 2025
// (2510.26692), Kimi Delta Attention: with a decay per channel; GLA's own gate is that without the delta rule.
//
// Errors: ShapeError (sizes, strides, an output that overlaps any other argument), OptionError (scale, a view that the
// chosen form needs or cannot use), UnsupportedError (decay, delta rule or kRecurrent without causal, delta rule
// or decay per channel with normalization). Sizes: B, H, Tq or Tk may be 0; D, F and Dv may not. Thread safety: any
// number of concurrent calls. When causal, a non-finite number in a token changes no result of an earlier token.
#pragma once

#include <cstdint>
#include <optional>

#include "qkv/context.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// phi. If no feature is below 0, no weight is.
enum class FeatureMap {
  kIdentity,    ///< x: RetNet, Mamba-2, GLA, DeltaNet
  kRelu,        ///< max(x, 0)
  kEluPlusOne,  ///< x + 1 above 0, exp(x) below
  kSoftmax,     ///< exp(r.y - |y|^2 / 2) / sqrt(F), y = sqrt(scale) x, for each row r of `features`: phi(q).phi(k) has
                ///< mean exp(scale q.k)
  kUnit         ///< x / sqrt(|x|^2 + 1e-6): Gated DeltaNet
};

/// How a causal sum is computed. The results agree within rounding; a call with one token and a state is always
/// recurrent.
enum class LinearForm {
  kChunked,   ///< the quadratic form on a few dozen tokens at a time, a state from each chunk to the next
  kRecurrent  ///< token by token: many times slower
};

/// S and z of each (batch, key/value head). z is present if and only if the sums are normalized.
template <class T> struct LinearState {
  View<T, 4> kv{};  ///< [B, Hkv, F, Dv]
  View<T, 3> z{};   ///< [B, Hkv, F]
};

template <class T> struct LinearAttentionOptions {
  FeatureMap feature_map = FeatureMap::kEluPlusOne;
  View<const T, 2> features{};  ///< [F, D], kSoftmax only: filled by random_features()
  bool causal = false;
  bool normalized = true;
  /// Multiplies phi(q).phi(k), default 1; in kSoftmax it multiplies q.k, default 1/sqrt(D), not below 0. With
  /// normalization it cancels, except in kSoftmax.
  std::optional<double> scale{};
  View<const T, 3> log_decay{};    ///< [B|1, Hkv|1, T|1], normally at most 0; -inf clears a state that is
                                   ///< finite (0 times NaN is NaN). RetNet: log(gamma[h]) as [1, Hkv, 1]
  View<const T, 3> beta{};         ///< [B|1, Hkv|1, T|1]: the delta rule; needs |phi(k)|^2 beta < 2 to be stable
  LinearState<const T> initial{};  ///< the state before the first key; null: zeros
  LinearForm form = LinearForm::kChunked;
  /// [B|1, Hkv|1, T|1, F], instead of log_decay: the logarithm of each channel's decay, normally at most 0. However
  /// strong the decay is, nothing overflows: no power of a positive number is formed on the way. Last axis of stride 1.
  View<const T, 4> log_decay_channels{};
};

/// Computes out [B,H,Tq,Dv] and, optionally, normalizer [B,H,Tq] (n above, which backward needs with normalization) and
/// the state after the last key, from q [B,H,Tq,D], k [B,Hkv,Tk,D], v [B,Hkv,Tk,Dv]. `final` may be the views of
/// `initial`, which are then updated in place.
QKV_API void linear_attention_forward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
    View<float, 4> out, View<float, 3> normalizer, const LinearAttentionOptions<float>& options = {},
    const LinearState<float>& final = {}, Context& context = Context::default_context());
QKV_API void linear_attention_forward(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
    View<double, 4> out, View<double, 3> normalizer, const LinearAttentionOptions<double>& options = {},
    const LinearState<double>& final = {}, Context& context = Context::default_context());

/// Outputs of backward. A null view is not computed. Every other view is overwritten in full, or added to with
/// `accumulate`.
template <class T> struct LinearAttentionGradients {
  View<T, 4> dq{};                ///< [B, H, Tq, D]
  View<T, 4> dk{};                ///< [B, Hkv, Tk, D]
  View<T, 4> dv{};                ///< [B, Hkv, Tk, Dv]
  View<T, 3> dlog_decay{};        ///< in the shape of log_decay: summed over the axes that repeat
  View<T, 3> dbeta{};             ///< likewise
  LinearState<T> dinitial{};      ///< gradient of the initial state
  LinearState<const T> dfinal{};  ///< input, optional: gradient arriving at the final state
  bool accumulate = false;
  View<T, 4> dlog_decay_channels{};  ///< in the shape of log_decay_channels, last axis of stride 1
};

/// Gradients of sum(out * dout) (+ sum(final * dfinal)), from the inputs and results of forward. With normalization it
/// needs out and normalizer, otherwise both may be null. The rows of `features` have no gradient. In addition to inputs
/// and outputs it holds one state for each segment of at most 32 chunks of each (batch, key/value head), and for each
/// thread the states and scores of about a thousand tokens.
QKV_API void linear_attention_backward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
    View<const float, 4> out, View<const float, 3> normalizer, View<const float, 4> dout,
    const LinearAttentionGradients<float>& gradients, const LinearAttentionOptions<float>& options = {},
    Context& context = Context::default_context());
QKV_API void linear_attention_backward(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
    View<const double, 4> out, View<const double, 3> normalizer, View<const double, 4> dout,
    const LinearAttentionGradients<double>& gradients, const LinearAttentionOptions<double>& options = {},
    Context& context = Context::default_context());

/// Fills features [F, D] for FeatureMap::kSoftmax: blocks of D orthogonal directions, each as long as a vector of D
/// normal numbers (Choromanski 2021, section 2.4). A seed gives the same numbers on every machine.
QKV_API void random_features(std::uint64_t seed, View<float, 2> features);
QKV_API void random_features(std::uint64_t seed, View<double, 2> features);

}  // namespace qkv::inline v0
