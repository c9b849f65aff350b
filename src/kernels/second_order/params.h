// Parameters of the kernels of second order: a tile of backward and the tangents of its inputs. And their table.
#pragma once

#include "kernels/attention/params.h"

namespace qkv {

/// Tangents of one (batch, head); null stands for zeros.
template <class T> struct TileTangents {
  const T *q, *k, *v;  // [q_count, D], [Tk, D], [Tk, Dv]
  Index q_stride, k_stride, v_stride;
  TileBias<T> bias;   // null data where the bias does not move or there is none
  const T* position;  // added to the bias's, indexed by key - query; null: nothing
};

/// Queries [q_begin, +q_count) of one (batch, head), and for `keys` keys [k_begin, +k_count). All rows are T, keys one
/// page.
template <class T> struct SecondOrderTile {
  BackwardTile<T> first;  // dout null: forward mode. dq, dk, dv, dbias receive gq, gk, gv, gbias; all are added to
  TileTangents<T> tangents;
  T* mean;         // [q_count]: tlse = sum_j w ts; made by `rows`, read by `keys`
  T* moment;       // [q_count]: sum_j w ((ts - mean) (dw - delta) + z dout.tv), likewise; null without dout
  T sink_tangent;  // the tangent of the sink, where there is one
  T* tout;         // [q_count, Dv] or null: added to
  Index tout_stride;
};

template <class T> struct SecondOrderKernels {
  std::size_t (*scratch_bytes)(Index head_dim, Index v_head_dim);
  /// mean, moment, tout, gq, gbias: all keys, in ascending order.
  void (*rows)(const SecondOrderTile<T>&, void* scratch);
  /// gk, gv of the keys of a tile, from its queries; needs `rows` of them.
  void (*keys)(const SecondOrderTile<T>&, void* scratch);
};

struct SecondOrderTable {
  SecondOrderKernels<float> f32;
  SecondOrderKernels<double> f64;
};

}  // namespace qkv
