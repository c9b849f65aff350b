// Parameters of the selective scan and of the short convolution (qkv/state_space.h has the
// formulas). Channels lie in lanes; `block`: channels of one call, a few vectors.
#pragma once

#include <cstdint>

#include "qkv/types.h"

namespace qkv {

/// Tokens between two states that forward keeps for backward.
constexpr Index kScanChunk = 16;
/// Tokens whose gradients are added one to another; their sums are added then, so that of N tokens an error is about
/// (kSumTokens + N / kSumTokens) roundings at most and not N. A multiple of kScanChunk and of a convolution's block.
constexpr Index kSumTokens = 1024;

/// Row of token t at data + t * stride; null: none.
template <class T> struct TokenRows {
  T* data;
  Index stride;

  [[gnu::always_inline]] T* at(Index token) const { return data + token * stride; }
};

/// A number of each token and state: of token t and state n at data + t * stride + n * state.
template <class T> struct TokenStates {
  const T* data;
  Index stride, state;
};

/// All tokens of up to `block` channels of one sequence, which share b and c.
template <class T> struct ScanBlock {
  Index length, states, channels;
  TokenRows<const T> u, dt;  // [T, channels]
  const T *a, *skip;         // [states][block], A log2(e); [block], D
  TokenStates<T> b, c;
  TokenRows<T> out;  // null: only states are wanted
  T* state;          // [states][block]: before the first token, then after the last
  T* kept;           // state before token kScanChunk i at kept + i * kept_chunk, rows [channels] of kept_state
  Index kept_chunk, kept_state;  // apart; null: none
};

/// Gradients: `forward` has kept and no out; its state is scratch.
template <class T> struct ScanBlockGradient {
  ScanBlock<T> forward;
  TokenRows<const T> dout;
  TokenRows<T> du, ddt;  // null: not wanted
  T* dstate;             // [states][block]: gradient of the state after the last token, then of that before the first
  T *da, *dskip;         // [states][block], [block]: set
  T *db, *dc;            // [T][states]: sums over the block's channels, set
};

/// Tokens [begin, end) of one sequence and some channels. weight [width][channels]; before: rows of the tokens
/// -(width - 1) to -1, null: zeros. reach[t]: how many tokens before t it reads, -1: its result is 0; null: width - 1.
template <class T> struct ConvolutionRows {
  Index width, begin, end, channels;
  bool silu;
  TokenRows<const T> x, before, weight;
  const T* bias;  // [channels]
  const std::int32_t* reach;
  TokenRows<T> out;
};

/// Gradients, of all tokens: each set, dbefore added to; null: not wanted.
template <class T> struct ConvolutionGradient {
  ConvolutionRows<T> forward;
  TokenRows<const T> dout;
  TokenRows<T> dx, dbefore, dweight;
  T* dbias;
};

template <class T> struct ScanKernels {
  Index block;  // channels
  /// to[c * to_row + r] = factor * from[r * from_row + c]; the last vector of rows is filled up with 0.
  void (*pack)(const T* from, Index from_row, Index rows, Index columns, T factor, T* to, Index to_row);
  std::size_t (*backward_scratch_bytes)(Index states);
  void (*forward)(const ScanBlock<T>&);
  void (*backward)(const ScanBlockGradient<T>&, void* scratch);
  void (*convolve)(const ConvolutionRows<T>&);
  void (*convolve_backward)(const ConvolutionGradient<T>&);
};

}  // namespace qkv
