// Ragged batches: sequences of different lengths stored one after another and separated by offsets instead of padding.
// Each sequence attends within itself, exactly as if it were passed to attention_forward alone: with the same semantics
// and options, and bit-identical results.
//
//   q_offsets {0, 3, 4}, kv_offsets {0, 3, 5}:           k: a0 a1 a2 b0 b1
//   sequence a has 3 queries and 3 keys,            q: a0    1  0  0  .  .
//   sequence b has 1 query and 2 keys;                 a1    1  1  0  .  .      a dot: never read
//   causal(Align::kBottomRight)                        a2    1  1  1  .  .
//                                                      b0    .  .  .  1  1
//
// Shapes: B sequences; q [total_q, H, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv]; views are strided, last stride 1.
// Options apply to each sequence by itself: an alignment uses its own Tq and Tk, offsets [B] of a causal mask are one
// per sequence, and of a bias [B|1, H|1, longest Tq|1, longest Tk|1] it uses the first rows and columns. Dropout
// numbers sequence b as first_sequence + b, and i and j count within it, so results are bit-identical to the sequence
// alone under that first_sequence.
//
// Callbacks get the sequence as b, and i and j within it. What lists positions (dense masks, block maps, documents,
// keys) must have each sequence's own Tq and Tk, so it serves batches of equal lengths.
//
// Errors, in addition to those of attention_forward: UnsupportedError for a capture and a part; offsets that do not
// start at 0, that decrease, or that do not end at the number of tokens (ShapeError, OptionError). A call is one
// parallel region for any number of sequences; nothing is allocated after the first call of a shape. Like
// FlashAttention's varlen interface (cu_seqlens), Dao 2022, arXiv:2205.14135, and its repository.
#pragma once

#include "qkv/attention.h"
#include "qkv/offsets.h"

namespace qkv::inline v0 {

/// Where sequences lie: sequence b has queries [q_offsets[b], q_offsets[b + 1]) and keys likewise. Both are [B + 1] and
/// start with 0. Lengths may be 0. Elements are Index or int32 (cu_seqlens); borrowed until the call returns.
struct RaggedOffsets {
  Offsets q_offsets, kv_offsets;
};

/// Number of weights of all sequences: H * Tq * Tk for each, stored one sequence after another.
inline Index ragged_weights_count(const RaggedOffsets& offsets, Index num_heads) {
  Index count = 0;
  for (std::size_t b = 1; b < offsets.q_offsets.size(); ++b) {
    count += (offsets.q_offsets[b] - offsets.q_offsets[b - 1]) * (offsets.kv_offsets[b] - offsets.kv_offsets[b - 1]);
  }
  return num_heads * count;
}

/// The weights of sequence b among them, [H, Tq, Tk].
template <class T>
View<T, 3> ragged_weights(View<T, 1> weights, const RaggedOffsets& offsets, Index num_heads, Index b) {
  const auto after = static_cast<std::size_t>(b) + 1;
  const RaggedOffsets before{offsets.q_offsets.first(after), offsets.kv_offsets.first(after)};
  return {weights.data() + ragged_weights_count(before, num_heads),
      {num_heads, offsets.q_offsets[after] - offsets.q_offsets[after - 1],
          offsets.kv_offsets[after] - offsets.kv_offsets[after - 1]}};
}

/// Outputs of forward, as in AttentionOutputs; the weights of each sequence are bit-identical to attention_forward on
/// it alone.
template <class T> struct RaggedOutputs {
  View<T, 3> out{};                   ///< [total_q, H, Dv]
  View<Accumulator<T>, 2> lse{};      ///< [total_q, H]
  View<Accumulator<T>, 1> weights{};  ///< [ragged_weights_count]: [H, Tq, Tk] of each sequence, one after another
  WeightsKind kind = WeightsKind::kSoftmax;  ///< of weights
};

namespace detail {
QKV_API void varlen_forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyOutputs& outputs,
    const RaggedOffsets& offsets, const AttentionOptions& options, Context& context);
QKV_API void varlen_backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out,
    const AnyView& lse, const AnyView& dout, const AnyGradients& gradients, const RaggedOffsets& offsets,
    const AttentionOptions& options, Context& context);
QKV_API AttentionPlan varlen_plan(const AnyView& q, const AnyView& k, const AnyView& v, const RaggedOffsets& offsets,
    const AttentionOptions& options, Context& context);
}  // namespace detail

/// Computes outputs of every sequence; v may be null where out is not requested.
template <Operand Q> void attention_varlen_forward(const Q& q, In<Q, 3> k, In<Q, 3> v,
    const RaggedOutputs<ElementOf<Q>>& outputs, const RaggedOffsets& offsets, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  const detail::AnyOutputs any{outputs.out, outputs.lse, outputs.weights, outputs.kind, {}};
  detail::varlen_forward(In<Q, 3>(q), k, v, any, offsets, options, context);
}

/// Outputs of backward; null views are not computed. Overwritten in full, or added to with `accumulate`.
template <class T> struct RaggedGradients {
  View<T, 3> dq{};                           ///< [total_q, H, D]
  View<T, 3> dk{};                           ///< [total_k, Hkv, D]
  View<T, 3> dv{};                           ///< [total_k, Hkv, Dv]
  View<Accumulator<T>, 4> dbias{};           ///< in the shape of the bias: summed over the axes that repeat
  View<Accumulator<T>, 1> dsinks{};          ///< [H], needs sinks
  View<Accumulator<T>, 2> dposition_bias{};  ///< [rows, H] of the position bias
  View<const Accumulator<T>, 2> dlse{};      ///< input, optional: gradient arriving at lse [total_q, H]
  bool accumulate = false;
};

/// Gradients of sum(out * dout) (+ sum(lse * dlse)); see attention_backward. Gradients that sequences share (dbias,
/// dsinks, dposition_bias) are summed in an order that depends on the lengths alone.
template <Operand Q> void attention_varlen_backward(const Q& q, In<Q, 3> k, In<Q, 3> v, In<Q, 3> out, SumsIn<Q, 2> lse,
    In<Q, 3> dout, const RaggedGradients<ElementOf<Q>>& g, const RaggedOffsets& offsets,
    const AttentionOptions& options = {}, Context& context = Context::default_context()) {
  const detail::AnyGradients any{
      g.dq, g.dk, g.dv, g.dbias, g.dsinks, g.dposition_bias, {}, {}, g.dlse, g.accumulate, {}};
  detail::varlen_backward(In<Q, 3>(q), k, v, out, lse, dout, any, offsets, options, context);
}

/// Describes both calls: tiles and work items of all sequences together, scratch of one region.
template <Operand Q> AttentionPlan attention_varlen_plan(const Q& q, In<Q, 3> k, In<Q, 3> v,
    const RaggedOffsets& offsets, const AttentionOptions& options = {}, Context& context = Context::default_context()) {
  return detail::varlen_plan(In<Q, 3>(q), k, v, offsets, options, context);
}

}  // namespace qkv::inline v0
