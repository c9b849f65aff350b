// Derivatives of attention beyond its gradients: forward mode (jvp) and the gradients of the gradients (double
// backward). Tiled, with O(T) memory, bit-identical for any number of threads.
//
// Letters and formulas are those of attention.h; z[i,j] is the factor of dropout, w the weights, t"x" the tangent of x.
//   ts[i,j]  = softcap'(x) * scale * (tq[i].k[j] + q[i].tk[j]) + tbias[i,j]          x = scale * q[i].k[j]
//   tlse[i]  = sum_j w ts                                                           (+ exp(sink - lse[i]) tsink)
//   tout[i]  = sum_j z w ((ts - tlse[i]) v[j] + tv[j])
// attention_backward gives dq, dk, dv, dbias with <tq, dq> + <tk, dk> + <tv, dv> + <tbias, dbias> = <tout, dout> +
// <tlse, dlse>, for any tangents. So double backward, whose inputs are cotangents of dq, dk, dv, dbias, is the gradient
// of the right side with those cotangents instead of the tangents. Derived in docs/maths/second-order.md. Pearlmutter
// 1994 (Neural Computation 6, 147).
//
// A row without a key has tlse 0; its tout is computed like out, with tv instead of v; it adds nothing to gq, gk, gv,
// gbias. Errors: those of attention_backward; UnsupportedError for a score_mod, whose slope has no derivative, a
// capture and a part; ShapeError where a tangent does not have the sizes of its input.
#pragma once

#include "qkv/attention.h"

namespace qkv::inline v0 {

/// A direction in which the inputs move; a null view stands for zeros.
template <class T> struct AttentionTangents {
  View<const T, 4> q{};              ///< [B, H, Tq, D]
  View<const T, 4> k{};              ///< [B, Hkv, Tk, D]
  View<const T, 4> v{};              ///< [B, Hkv, Tk, Dv]
  View<const T, 4> bias{};           ///< in the (broadcast) sizes of the bias; ignored where the bias is -inf
  View<const T, 1> sinks{};          ///< [H]; ignored where the sink is -inf
  View<const T, 2> position_bias{};  ///< [rows, H]: tangent of the table, or of ALiBi's slopes [1, H]
};

/// Computes tout [B,H,Tq,Dv] and tlse [B,H,Tq] (a null view is not computed): how out and lse of attention_forward move
/// when its inputs do. lse is the one that forward returned.
QKV_API void attention_jvp(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
    View<const float, 3> lse, const AttentionTangents<float>& tangents, View<float, 4> tout, View<float, 3> tlse,
    const AttentionOptions& options = {}, Context& context = Context::default_context());
QKV_API void attention_jvp(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
    View<const double, 3> lse, const AttentionTangents<double>& tangents, View<double, 4> tout, View<double, 3> tlse,
    const AttentionOptions& options = {}, Context& context = Context::default_context());

/// Outputs of double backward, written in full. A null view is not computed.
template <class T> struct AttentionSecondGradients {
  View<T, 4> gq{};              ///< [B, H, Tq, D]
  View<T, 4> gk{};              ///< [B, Hkv, Tk, D]
  View<T, 4> gv{};              ///< [B, Hkv, Tk, Dv]
  View<T, 4> gdout{};           ///< [B, H, Tq, Dv]
  View<T, 4> gbias{};           ///< in the (broadcast) sizes of the bias: summed over the axes that repeat
  View<T, 3> gdlse{};           ///< [B, H, Tq]
  View<T, 1> gsinks{};          ///< [H]
  View<T, 2> gposition_bias{};  ///< [rows, H] of the position bias
  View<const T, 3> dlse{};      ///< input, optional: the dlse that backward was passed
};

/// Gradients with respect to q, k, v, dout (bias, sinks, position bias, dlse) of <ddq, dq> + <ddk, dk> + <ddv, dv> +
/// <ddbias, dbias> + <ddsinks, dsinks> + <ddposition_bias, dposition_bias>, where dq, ... are what attention_backward
/// computes. `cotangents` holds ddq, ...; a null one is zeros. out and lse are those that forward returned.
QKV_API void attention_double_backward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
    View<const float, 4> out, View<const float, 3> lse, View<const float, 4> dout,
    const AttentionTangents<float>& cotangents, const AttentionSecondGradients<float>& gradients,
    const AttentionOptions& options = {}, Context& context = Context::default_context());
QKV_API void attention_double_backward(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
    View<const double, 4> out, View<const double, 3> lse, View<const double, 4> dout,
    const AttentionTangents<double>& cotangents, const AttentionSecondGradients<double>& gradients,
    const AttentionOptions& options = {}, Context& context = Context::default_context());

}  // namespace qkv::inline v0
