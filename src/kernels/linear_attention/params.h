// Parameters of the kernels of linear attention (qkv/linear_attention.h has the formulas), and their table. Letters:
// D, Dv as there, F features; "chunk": tokens within which the square form is computed; "segment": a few chunks, one
// call; "state": S [F][Dv] followed by z [F]. Chunks and segments are constants of (type, F, Dv) counted from token 0.
// Within a segment the state is decay * base + local: base from before the segment, local from its own tokens. Once a
// first pass has summed each segment's local state, segments can run in parallel, with results bit-identical to running
// in order.
#pragma once

#include <cstddef>

#include "kernels/linear_attention/scan_params.h"
#include "qkv/types.h"

namespace qkv {

/// Tokens of a chunk. Causal: per token its square costs half as much with 32 tokens as with 64, which is more than the
/// second pass over the state. Not causal: there is no square.
constexpr Index kLinearCausalChunk = 32, kLinearFullChunk = 64;
/// Tokens of a chunk with a decay per channel: its pairs are formed one by one, a decay for each of them and each
/// channel.
constexpr Index kLinearChannelChunk = 16;

enum LinearMap : int { kLinearIdentity, kLinearRelu, kLinearEluPlusOne, kLinearSoftmax, kLinearUnit };

/// phi. For kLinearSoftmax: phi(x)[r] = exp(rows[r].x - half_norm |x|^2 - log_root), rows times sqrt(scale) already.
template <class T> struct LinearAttentionFeatures {
  int map;
  Index head_dim, count;            // D, F
  T query_scale;                    // multiplies phi(q)
  const T *rows, *rows_transposed;  // [F][D], [D][F]; kLinearSoftmax only
  T half_norm, log_root;
  bool invariant;  // sums along rows are those of vectors of 64 bytes, whatever the instruction set
};

/// Rows of the tokens of one (batch, key/value head), from token 0 on, and of the query heads of its group; null: none.
template <class T> struct HeadRows {
  T* data;
  Index head_stride, stride;

  [[gnu::always_inline]] T* at(Index head, Index token) const { return data + head * head_stride + token * stride; }
};

/// Tokens [begin, end) of one (batch, key/value head) and all query heads of its group.
template <class T> struct LinearAttentionSegment {
  LinearAttentionFeatures<T> features;
  HeadRows<const T> q, k, v;          // [group][T, D], [T, D], [T, Dv]; q null: only the state is wanted
  HeadRows<T> out;                    // [group][T, Dv]
  HeadRows<T> normalizer;             // [group][T] or null
  HeadRows<const T> log_decay, beta;  // [T] or null
  Index group_size, v_head_dim, begin, end, chunk;
  bool channels;  // log_decay is [T, F], the decay of each channel of phi(k); chunk is at most kLinearChannelChunk
  bool normalized;
  const T* base;  // the state before the segment
  T* local;  // what the segment adds to it, then one number: the decay of base over the segment. Channels: the state
             // after it
};

/// One token: `token` has begin 0 and end 1, no base and no local; before and after [F][Dv] may be the same memory.
template <class T> struct LinearAttentionStep {
  LinearAttentionSegment<T> token;
  const T* before;
  T* after;
  Index before_row, after_row;
};

/// Gradients of a segment. With `dq`, `dk` and `dv` null only dlocal is computed.
template <class T> struct LinearAttentionGradient {
  LinearAttentionSegment<T> forward;  // its out is read, its normalizer too
  HeadRows<const T> dout;             // [group][T, Dv]
  HeadRows<T> dq, dk, dv;             // [group][T, D], [T, D], [T, Dv]
  HeadRows<T> dlog_decay, dbeta;      // [T], dlog_decay with channels [T, F]: set, not added to
  bool accumulate_qk;                 // dq, dk are added to
  bool accumulate_v;                  // dv is
  const T* dbase;                     // gradient of the state after the segment
  T* dlocal;  // what the segment adds to it, then the same decay, as in local. Channels: that of the state before it
};

struct LinearAttentionSizes {
  Index head_dim, features, v_head_dim, chunk;
  bool delta, channels, invariant;
};

template <class T> struct LinearAttentionKernels {
  Index (*segment_chunks)(Index features, Index v_head_dim);
  std::size_t (*forward_scratch_bytes)(const LinearAttentionSizes&);
  std::size_t (*backward_scratch_bytes)(const LinearAttentionSizes&);
  void (*forward)(const LinearAttentionSegment<T>&, void* scratch);  // causal, or the state alone
  void (*step)(const LinearAttentionStep<T>&, void* scratch);        // scratch: F (3 + group size) numbers
  /// to[c * to_row + r] = from[r * from_row + c]; rows are whole vectors of any kind, a multiple of 64 bytes of T.
  void (*turn)(const T* from, Index from_row, Index rows, Index columns, T* to, Index to_row);
  void (*read_state)(const LinearAttentionSegment<T>&, void* scratch);  // out of base alone, for queries [begin, end)
  void (*backward)(const LinearAttentionGradient<T>&, void* scratch);   // causal, or dlocal alone
  void (*backward_queries)(const LinearAttentionGradient<T>&, void* scratch);  // dq from base alone
  void (*backward_keys)(const LinearAttentionGradient<T>&, void* scratch);     // dk, dv from dbase alone
  ScanKernels<T> scan, invariant_scan;
};

struct LinearAttentionTable {
  LinearAttentionKernels<float> f32;
  LinearAttentionKernels<double> f64;
};

}  // namespace qkv
