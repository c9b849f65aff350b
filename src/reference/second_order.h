// Derivatives beyond the gradients as in a textbook: the whole S x S in memory, one formula per line. Forward mode
// (jvp) and double backward. The formulas are derived in docs/maths/second-order.md.
#pragma once

#include "reference/attention.h"

namespace qkv::inline v0::reference {

/// A direction in the space of inputs; a null view stands for zeros.
template <class T> struct Tangents {
  View<const T, 4> q;                 ///< [B, H, Tq, D]
  View<const T, 4> k;                 ///< [B, Hkv, Tk, D]
  View<const T, 4> v;                 ///< [B, Hkv, Tk, Dv]
  View<const T, 4> bias;              ///< [B|1, H|1, Tq|1, Tk|1]
  View<const T, 1> sinks{};           ///< [H]
  View<const T, 2> position_table{};  ///< [rows, H]
};

template <class T> struct Jvp {
  Tensor<T> out;  ///< [B, H, Tq, Dv]
  Tensor<T> lse;  ///< [B, H, Tq]; 0 for an empty row
};

template <class T> struct DoubleBackward {
  Tensor<T> q;                 ///< [B, H, Tq, D]
  Tensor<T> k;                 ///< [B, Hkv, Tk, D]
  Tensor<T> v;                 ///< [B, Hkv, Tk, Dv]
  Tensor<T> bias;              ///< [B, H, Tq, Tk]; reduce_to_bias() sums it to the bias's own shape
  Tensor<T> dout;              ///< [B, H, Tq, Dv]
  Tensor<T> dlse;              ///< [B, H, Tq]
  Tensor<T> sinks{};           ///< [H], where there are sinks
  Tensor<T> position_table{};  ///< [rows, H], where there is one
};

/// The derivatives of out and lse along the tangents.
template <class T> Jvp<T> attention_jvp(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v,
    const Tangents<T>& tangents, const Options<T>& options = {});

/// Gradients of <ddq, dq> + <ddk, dk> + <ddv, dv> + <ddbias, dbias> with respect to every input of attention_backward,
/// with what forward gave for q, k, v and options. Its dout and dlse are jvp's out and lse.
template <class T> DoubleBackward<T> attention_double_backward(View<const T, 4> q, View<const T, 4> k,
    View<const T, 4> v, View<const T, 4> dout, View<const T, 3> dlse, const Tangents<T>& cotangents,
    const Options<T>& options, const Forward<T>& forward);
/// The same, forward first.
template <class T> DoubleBackward<T> attention_double_backward(View<const T, 4> q, View<const T, 4> k,
    View<const T, 4> v, View<const T, 4> dout, View<const T, 3> dlse, const Tangents<T>& cotangents,
    const Options<T>& options = {}) {
  return attention_double_backward(q, k, v, dout, dlse, cotangents, options, attention_forward(q, k, v, options));
}

}  // namespace qkv::inline v0::reference
