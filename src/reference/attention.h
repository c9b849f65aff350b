// Attention as in a textbook: plain loops, the whole score matrix in memory, one formula per line. Read it first.
// It is the oracle of the tests and the "naive" form of the tool. Not: fast, tiled, parallel, or aware of Mask and
// Philox: the caller passes two functions, which pairs are kept and what dropout multiplies by.
//
// T is the type of every number and of every sum: float (the naive form), double or long double (the oracles).
// Letters: B batch, H query heads, Hkv key/value heads, Tq queries, Tk keys, D width of q and k, Dv width of v.
// Vaswani 2017 (arXiv:1706.03762) eq. 1; the backward is its derivative, written out in attention.cc.
#pragma once

#include <functional>
#include <optional>

#include "qkv/attention.h"

namespace qkv::inline v0::reference {

/// May query i of head h of sequence b attend key j?
using Keep = std::function<bool(Index b, Index h, Index i, Index j)>;
/// The factor of dropout on the weight (b, h, i, j).
using Factor = std::function<double(Index b, Index h, Index i, Index j)>;

template <class T> struct Options {
  Keep keep;                    ///< not given: every pair is kept
  View<const T, 4> bias;        ///< [B|1, H|1, Tq|1, Tk|1]; -inf: not kept; null: none
  std::optional<double> scale;  ///< not given: 1/sqrt(D)
  double softcap = 0;           ///< 0: off
  EmptyRow empty_row = EmptyRow::kZero;
  Factor factor;  ///< not given: 1 everywhere
  /// One logit per head, added to the softmax's denominator of each row; null: none. [H]
  View<const T, 1> sinks{};
  /// position_factor(i, j) * position_table[position_row(i, j), h] is added to the score; null: nothing. [rows, H]
  View<const T, 2> position_table{};
  std::function<Index(Index i, Index j)> position_row{};
  std::function<double(Index i, Index j)> position_factor{};
  /// The modified score (-inf: not kept) and its derivative. Not given: the score itself.
  std::function<T(T score, Index b, Index h, Index i, Index j)> score_mod{}, score_mod_slope{};
};

template <class T> struct Forward {
  Tensor<T> out;      ///< [B, H, Tq, Dv]
  Tensor<T> lse;      ///< [B, H, Tq]
  Tensor<T> weights;  ///< [B, H, Tq, Tk], after softmax, before dropout
};

template <class T> struct Backward {
  Tensor<T> dq;                 ///< [B, H, Tq, D]
  Tensor<T> dk;                 ///< [B, Hkv, Tk, D]
  Tensor<T> dv;                 ///< [B, Hkv, Tk, Dv]
  Tensor<T> dbias;              ///< [B, H, Tq, Tk]; reduce_to_bias() sums it to the bias's own shape
  Tensor<T> dsinks{};           ///< [H], where there are sinks
  Tensor<T> dposition_table{};  ///< [rows, H], where there is one
};

/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]. Shapes are not checked.
template <class T> Forward<T> attention_forward(
    View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const Options<T>& options = {});

/// Gradients of sum(out * dout) + sum(lse * dlse) with what forward gave for q, k, v and options. dout [B, H, Tq, Dv];
/// dlse [B, H, Tq] or null.
template <class T> Backward<T> attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v,
    View<const T, 4> dout, View<const T, 3> dlse, const Options<T>& options, const Forward<T>& forward);
/// The same, forward first.
template <class T> Backward<T> attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v,
    View<const T, 4> dout, View<const T, 3> dlse = {}, const Options<T>& options = {}) {
  return attention_backward(q, k, v, dout, dlse, options, attention_forward(q, k, v, options));
}

/// dbias [B, H, Tq, Tk] summed over every axis on which the bias is broadcast.
template <class T> Tensor<T> reduce_to_bias(const Tensor<T>& dbias, const typename View<const T, 4>::Sizes& bias_sizes);

}  // namespace qkv::inline v0::reference
