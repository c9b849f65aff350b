// One checked call of linear attention: sizes, options and strides turned into what is passed to kernels.
#pragma once

#include "attention/call/tensor_checks.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"
#include "kernels/linear_attention/params.h"
#include "qkv/linear_attention.h"

namespace qkv::inline v0 {

/// The rows of one head of a tensor [B, H, T, ..], or null.
template <class T, int kRank> HeadRows<T> head_rows(const View<T, kRank>& x, Index b, Index h) {
  return {x.data() == nullptr ? nullptr : x.data() + b * x.stride(0) + h * x.stride(1), x.stride(1), x.stride(2)};
}

/// Tokens [begin, end) of key/value head `item` of all sequences.
struct Tokens {
  Index item, begin, end;
};

template <class T> struct LinearProblem {
  Index batch, num_heads, num_kv_heads;  // num_heads of out, num_kv_heads of v and the states
  Index value_group;  // heads of v that share one head of q and k; where above 1, num_heads is num_kv_heads
  Index q_len, kv_len, head_dim, v_head_dim;
  View<const T, 4> q, k, v;
  View<const T, 3> log_decay, beta;  // null: none
  View<const T, 4> channels;         // log_decay per channel; null: none
  LinearState<const T> initial;      // null: zeros
  bool causal, normalized;
  LinearAttentionFeatures<T> features;
  const LinearAttentionKernels<T>* kernels;
  Index chunk, segment;           // tokens
  View<const T, 2> feature_rows;  // null: none
  double root_scale;              // what the rows are multiplied by
  int threads;

  Index group_size() const { return num_kv_heads == 0 ? 1 : num_heads / num_kv_heads; }
  Index kv_heads() const { return batch * num_kv_heads; }          // of all sequences
  Index value_groups() const { return kv_heads() / value_group; }  // likewise; item belongs to group item / value_group
  Index k_head(Index g) const { return g / value_group; }          // of state head g
  Index q_head(Index g) const { return g * group_size() / value_group; }  // its first
  Index segments(Index length) const { return (length + segment - 1) / segment; }
  /// Segment number % segments of head number / segments.
  Tokens tokens(Index number, Index length) const {
    const Index begin = number % segments(length) * segment;
    return {number / segments(length), begin, std::min(length, begin + segment)};
  }
  Index state_count() const { return features.count * (v_head_dim + 1); }
  /// Numbers of a state and of the decay of the one before, in whole cache lines.
  Index slot_count() const { return static_cast<Index>(line_bytes<T>(state_count() + 1) / sizeof(T)); }
  LinearAttentionSizes sizes() const {
    return {head_dim, features.count, v_head_dim, chunk, !beta.is_null(), !channels.is_null(), features.invariant};
  }
  /// Whether each segment needs the state that the one before leaves, rather than its own sum alone.
  bool in_order() const { return !beta.is_null() || !channels.is_null(); }
  /// state [slot_count] after a segment from that before it and the kernel's result, which with a decay per channel is
  /// it.
  void pass(const T* slot, T* state) const;
  /// Multiply-adds of tokens with a state and with the square of their chunk, times 2.
  double flops(Index length) const;

  /// Copies the random features, scaled, as they are and transposed: part() points there.
  void carve_features(Carver& carver);
  /// base, local and results are left null.
  LinearAttentionSegment<T> part(const Tokens& tokens) const;
  /// state [slot_count] of `item` = the initial one.
  void load_initial(Index item, T* state) const;
  /// to, of `item`, (+)= state
  void store(const T* state, Index item, bool add, const LinearState<T>& to) const;
  /// Throws ShapeError or OptionError unless the state is null or fits.
  template <class E> void check_state(const char* function, const char* name, const LinearState<E>& state) const;
};

/// Checks q, k, v and the options. Throws ShapeError, OptionError, UnsupportedError.
template <class T> LinearProblem<T> make_linear_problem(const char* function, const View<const T, 4>& q,
    const View<const T, 4>& k, const View<const T, 4>& v, const LinearAttentionOptions<T>& options,
    const Context& context);

/// state = decay * state + slot, where slot[count] is the decay
template <class T> void pass_segment(const T* slot, Index count, T* state);

/// Whether a causal sequence's segments should run at once. Sums of states are then computed twice, so only if heads
/// leave threads idle for longer than that. `extra`: the cost of the second sum, as a share of the whole.
bool segments_at_once(Index heads, Index segments, int threads, double extra);

}  // namespace qkv::inline v0
