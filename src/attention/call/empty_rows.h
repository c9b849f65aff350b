// Rows in which no key may be attended, after all chunks are merged: what the three EmptyRow policies write there.
//   kMean, a finite fill   weights 1/Tk over all Tk keys, masked ones too; out_i = sum_j dropout(1/Tk) v_j,
//                          dv_j += dropout(1/Tk) dout_i
//   kNaN, a fill of -inf   out and weights NaN, dv of the whole head NaN
//   kZero                  what the kernels leave: out 0, weights 0
#pragma once

#include "attention/call/problem.h"

namespace qkv::inline v0 {

/// Writes out rows of queries [q_begin, q_begin + q_count) of (b, h) where lse is -inf: means of v's rows. lse
/// [q_count], out [q_count, Dv].
template <class Sum> void fill_empty_out(const Problem& p, const AnyView& v, Index b, Index h, Index q_begin,
    Index q_count, const Sum* lse, const Rows& out);

/// Writes weights rows likewise; weights [q_count, Tk].
template <class Sum> void fill_empty_weights(const Problem& p, Index b, Index h, Index q_begin, Index q_count,
    const Sum* lse, bool applied, Sum* weights, Index row_stride);

/// Adds the share of the empty rows of (b, h) to dv of keys [k_begin, k_begin + k_count). lse [B, H, Tq], dout [B, H,
/// Tq, Dv], dv [k_count, Dv].
template <class Sum> void add_empty_dv(const Problem& p, Index b, Index h, const AnyView& lse, const AnyView& dout,
    Index k_begin, Index k_count, Sum* dv, Index dv_stride);

}  // namespace qkv::inline v0
