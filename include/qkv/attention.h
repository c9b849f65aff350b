// Attention forward and backward, tiled (online softmax, O(T) memory), bitwise equal for any number of threads.
//
//   s[i,j]  = softcap(scale * q[i].k[j]) + bias[i,j]       softcap(x) = c * tanh(x / c), off when c = 0
//             (+ position_bias, then score_mod is applied to the sum, where they are given)
//   m[i]    = max(sink, max over kept j of s[i,j])         keep = the mask (a selection, not a sum); sink: where given
//   p[i,j]  = keep(i,j) ? exp(s[i,j] - m[i]) : 0
//   w[i,j]  = p[i,j] / l[i],  l[i] = sum_j p[i,j] + exp(sink - m[i])     weights
//   out[i]  = sum_j dropout(w)[i,j] * v[j]
//   lse[i]  = m[i] + log(l[i])                             natural log; -inf for an empty row
//
// Shapes: B batch, H query heads, Hkv key/value heads (H % Hkv == 0; head h reads h / (H / Hkv)), Tq queries, Tk keys,
// D width of q and k, Dv width of v. Views are strided; the last axis of q, k, v, out and their gradients has stride 1.
// Vaswani 2017 (arXiv:1706.03762) eq. 1; Milakov 2018 (1805.02867); Dao 2023 (2307.08691) alg. 1 and 2.
//
// Errors: ShapeError (sizes, strides, an output that overlaps any other argument), OptionError (scale, softcap, p, a
// mask that does not say where its diagonal lies). Sizes: B, H, Tq or Tk may be 0; D and Dv may not. Thread safety: any
// number of concurrent calls. A non-finite number in a key or value that no kept pair reads contributes nothing; in one
// that is read it propagates. Bits: the same for any number of threads and in any batch. With Bits::kInvariant a row of
// out and lse has, besides, the bits that it has alone: any number of queries beside it, later keys that it does not
// see, a cache or views (docs/concepts/semantics.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "qkv/capture.h"
#include "qkv/context.h"
#include "qkv/mask.h"
#include "qkv/position_bias.h"
#include "qkv/score_mod.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// The result of a row that may attend no key. In every case its lse is -inf and it adds nothing to dq, dk, dbias.
enum class EmptyRow {
  kZero,  ///< out 0, weights 0, adds nothing to dv
  kMean,  ///< weights 1/Tk over all Tk keys, masked ones too: what a finite fill such as -1e20 gives
  kNaN    ///< out and weights NaN, dv of the whole head NaN: what a fill of -inf gives
};

/// Dropout on the weights: Philox 4x32-10, key = seed, counter = (i, j/8, (b*H + h) mod 2^32, 0); key j uses the 16-bit
/// half j%8 of the four words, low half of word 0 first. A weight is dropped iff half < t, t = round(p * 65536); kept
/// weights are multiplied by 65536/(65536-t). Bit-identical for any tile, thread count and ISA; regenerated in
/// backward. Active only when training.
struct Dropout {
  double p = 0;  ///< in [0, 1]; p > 0 that rounds to t = 0 is an OptionError
  std::uint64_t seed = 0;
  bool training = false;
  Index first_sequence = 0;  ///< number of the first sequence in the whole batch

  bool active() const { return training && p > 0; }
};

/// A bias that is added to the scores, [B|1, H|1, Tq|1, Tk|1]. A pair with bias -inf is not kept.
using BiasView = SumsView<4>;

/// One learned logit per query head, [H]: it acts as a key without a value that every row of the head may attend, and
/// is neither scaled nor capped (gpt-oss). Rows of weights then sum to less than 1, and no row is empty: where no key
/// is kept, out is 0 and lse is the sink. A head whose logit is -inf has no sink. Xiao 2023 (arXiv:2309.17453),
/// section 3.2.
using SinkView = SumsView<1>;

namespace detail {

/// Of qkv::dist and qkv::nn: q holds rows [first_query, first_query + Tq) of `queries` and heads [first_head,
/// first_head + H) of `heads` of a larger problem. Masks, biases, sinks, position biases, callbacks and dropout are
/// those of the whole, by global position; out, lse, weights and dq have the bits of the whole (with a scale of 0, dq
/// is zero of either sign), dk and dv too where all queries are here. k and v have all Tk, and a key/value head comes
/// with all query heads that read it. dbias, dsinks and dposition_bias have the sizes of the whole and hold this part's
/// share. Rows that are no multiple of 32 cost a copy.
struct Part {
  Index first_query = 0, queries = -1;  ///< -1: all queries are here
  Index first_head = 0, heads = -1;     ///< -1: all heads are here
};

}  // namespace detail

struct AttentionOptions {
  Mask mask{};                    ///< default: everything is kept
  BiasView bias{};                ///< default: none
  std::optional<double> scale{};  ///< default 1/sqrt(D); any finite number
  double softcap = 0;             ///< >= 0; 0 = off
  EmptyRow empty_row = EmptyRow::kZero;
  Dropout dropout{};
  SinkView sinks{};                             ///< default: none
  PositionBias position_bias{};                 ///< ALiBi, T5, relative; added to bias
  std::shared_ptr<const ScoreMod> score_mod{};  ///< after soft cap and biases, before the mask
  CaptureRequest capture{};                     ///< default: no capture; {what, result} (capture.h)
  Bits bits = Bits::kFast;  ///< kInvariant also where the context says so; 13 times as slow without FMA
  detail::Part part{};      ///< default: the call is the whole problem; dense batches only
};

enum class WeightsKind {
  kSoftmax,  ///< after softmax, before dropout: rows sum to 1 (less with a sink; empty: by EmptyRow)
  kApplied,  ///< after dropout: what multiplied v
  kScores    ///< before softmax: s[i,j], after soft cap, biases and score_mod; -inf where not kept
};

/// Outputs of forward, each written in full. A null view is not computed; the bits of out do not depend on which
/// others are requested. OptionError where nothing is requested, here or by a capture (unless B, H or Tq is 0), and for
/// lse or lse_low without out.
/// weights take Tq x Tk numbers per head, and no other memory of that order is used. Requested together with out, they
/// add at most half the time of forward alone while the exponentials of a strip and its tile fit 1.5 MiB (vectors of
/// 64 bytes: about 11,000 keys where D and Dv are up to 128, 3,900 where they are 1,024); beyond that, and with
/// dropout, they cost a second sweep over the keys.
template <class T> struct AttentionOutputs {
  View<T, 4> out{};                          ///< [B, H, Tq, Dv]
  View<Accumulator<T>, 3> lse{};             ///< [B, H, Tq]
  View<Accumulator<T>, 4> weights{};         ///< [B, H, Tq, Tk]
  WeightsKind kind = WeightsKind::kSoftmax;  ///< of weights
  /// [B, H, Tq]: the rounding error of lse, so that lse + lse_low has more of its digits (f32: 48 bits); 0 where lse
  /// is not finite. Saves backward work (AttentionGradients). NaN where unknown (decode, lists of keys); pass it on.
  View<Accumulator<T>, 3> lse_low{};
};

/// Outputs of backward. A null view is not computed. Every other view is overwritten in full, or added to with
/// `accumulate`. 16-bit gradients are summed in float and rounded once.
template <class T> struct AttentionGradients {
  View<T, 4> dq{};                           ///< [B, H, Tq, D]
  View<T, 4> dk{};                           ///< [B, Hkv, Tk, D]
  View<T, 4> dv{};                           ///< [B, Hkv, Tk, Dv]
  View<Accumulator<T>, 4> dbias{};           ///< in the (broadcast) shape of the bias: summed over the axes that repeat
  View<Accumulator<T>, 1> dsinks{};          ///< [H], needs sinks: -sum_bi exp(sink[h] - lse[b,h,i]) * delta[b,h,i]
  View<Accumulator<T>, 2> dposition_bias{};  ///< [rows, H]: gradient of the table, or of ALiBi's slopes [1, H]
  /// dk and dv before they are rounded, for shares that are summed elsewhere; instead of dk and dv, never beside them.
  View<Accumulator<T>, 4> dk_sums{}, dv_sums{};
  View<const Accumulator<T>, 3> dlse{};  ///< input, optional: gradient arriving at lse [B, H, Tq]
  bool accumulate = false;
  /// Input, optional: forward's. Without it a tile of queries with an |lse| above 16, whose rounding would shift every
  /// weight, is computed forward again, a fifth of backward's work; with it only above 2^19 (f64: 2^48). Same bits, but
  /// for rows whose sums of v overflowed in forward and were computed again.
  View<const Accumulator<T>, 3> lse_low{};
};

namespace detail {
/// Outputs and gradients of any element type.
struct AnyOutputs {
  AnyView out{}, lse{}, weights{};
  WeightsKind kind = WeightsKind::kSoftmax;
  AnyView lse_low{};
};
struct AnyGradients {
  AnyView dq{}, dk{}, dv{}, dbias{}, dsinks{}, dposition_bias{}, dk_sums{}, dv_sums{}, dlse{};
  bool accumulate = false;
  AnyView lse_low{};
};
template <class T> AnyOutputs any(const AttentionOutputs<T>& x) { return {x.out, x.lse, x.weights, x.kind, x.lse_low}; }
QKV_API void forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyOutputs& outputs,
    const AttentionOptions& options, Context& context);

template <class X> constexpr bool kIsOperand =
    Operand<X> && std::is_convertible_v<const X&, View<const ElementOf<X>, 4>>;
template <class T> AnyGradients any(const AttentionGradients<T>& x) {
  return {x.dq, x.dk, x.dv, x.dbias, x.dsinks, x.dposition_bias, x.dk_sums, x.dv_sums, x.dlse, x.accumulate, x.lse_low};
}
QKV_API void backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out, const AnyView& lse,
    const AnyView& dout, const AnyGradients& gradients, const AttentionOptions& options, Context& context);
template <class T> QKV_API void merge(std::span<const View<const T, 4>> outs,
    std::span<const View<const Accumulator<T>, 3>> lses, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse,
    Context& context);
}  // namespace detail

/// Computes outputs from q [B,H,Tq,D], k [B,Hkv,Tk,D], v [B,Hkv,Tk,Dv], tensors or views of float, double, BFloat16 or
/// Float16; v may be {} where out is not requested.
template <class Q, class K, class V = View<const ElementOf<Q>, 4>> void attention_forward(const Q& q, const K& k,
    const V& v, const AttentionOutputs<ElementOf<Q>>& outputs, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  constexpr bool are_tensors = detail::kIsOperand<Q> && detail::kIsOperand<K> && detail::kIsOperand<V>;
  constexpr bool of_one_type = std::is_same_v<ElementOf<Q>, ElementOf<K>> && std::is_same_v<ElementOf<Q>, ElementOf<V>>;
  if constexpr (!are_tensors) {
    static_assert(are_tensors,
        "qkv: q, k and v must be tensors or views of four axes, [B, H, T, D]; qkv/easy.h takes std::vector and sizes");
  } else if constexpr (!of_one_type) {
    static_assert(of_one_type, "qkv: q, k and v must have the same element type");
  } else {
    using Rows = View<const ElementOf<Q>, 4>;
    detail::forward(Rows(q), Rows(k), Rows(v), detail::any(outputs), options, context);
  }
}

/// Gradients of sum(out * dout) (+ sum(lse * dlse)), from the inputs and results of forward. Needs lse. Where k and v
/// hold only a part of the keys, out and lse may be those of all keys (merge_attention): the result is then this part's
/// share of the gradients.
///   delta = rowsum(dout * out) - dlse;  dP = dout v^T;  dS = P * (dP - delta)
///   dq = scale dS k;  dk = scale dS^T q;  dv = P^T dout
template <Operand Q> void attention_backward(const Q& q, In<Q, 4> k, In<Q, 4> v, In<Q, 4> out, SumsIn<Q, 3> lse,
    In<Q, 4> dout, const AttentionGradients<ElementOf<Q>>& gradients, const AttentionOptions& options = {},
    Context& context = Context::default_context()) {
  detail::backward(In<Q, 4>(q), k, v, out, lse, dout, detail::any(gradients), options, context);
}

/// Merges attention over disjoint sets of keys: outs[n] [B,H,Tq,Dv], lses[n] [B,H,Tq] -> out, lse. The order is fixed,
/// and so are the bits. A part with lse = -inf changes nothing. lse_out = log sum_n exp(lse_n);  out = sum_n exp(lse_n
/// - lse_out) out_n. 16-bit outs are summed in float and rounded once. Gradients: attention_backward of each part,
/// given the merged out and lse. Parts are computed without sinks, which each would count again. ShapeError: no part,
/// sizes that differ, an out or lse that overlaps anything.
template <Operand To> void merge_attention(std::span<const In<To, 4>> outs, std::span<const SumsIn<To, 3>> lses,
    To&& out, SumsOut<To, 3> lse, Context& context = Context::default_context()) {
  detail::merge<ElementOf<To>>(outs, lses, out, lse, context);
}

/// Describes what a call would do, without doing it; a mask's callback is called, since its tiles are counted.
struct AttentionPlan {
  /// "tiled"; "decode": few queries, many keys; "lists": listed keys alone; "none". For a ragged batch whose sequences
  /// differ in this it is "tiled and decode", and the sizes below are those of the tiled sequences.
  std::string algorithm;
  Isa isa = Isa::kScalar;
  int threads = 1;
  Index query_tile = 0;  ///< queries per work item
  Index key_tile = 0;    ///< keys per chunk; chunks are counted from key 0
  Index work_items = 0;
  Index full_tiles = 0;                    ///< tiles (query strip x key chunk) computed without a mask
  Index partial_tiles = 0;                 ///< tiles computed with a bitmap of the mask
  Index skipped_tiles = 0;                 ///< tiles that are never read
  double forward_flops = 0;                ///< 2 * (D + Dv) per live pair
  double backward_flops = 0;               ///< 2 * (3 D + 2 Dv) per live pair
  std::size_t forward_scratch_bytes = 0;   ///< per thread
  std::size_t forward_shared_bytes = 0;    ///< decode: partial results before merging; ragged: the order of sequences
  std::size_t backward_scratch_bytes = 0;  ///< per thread; dbias is counted where there is a bias
  /// delta, lse in two parts, turns; 16-bit types: dq of the heads in flight in float
  std::size_t backward_shared_bytes = 0;
  std::size_t position_bias_bytes = 0;  ///< shared, forward and backward: one number per head and distance
  std::size_t mask_bytes = 0;           ///< shared, forward and backward: two bits for each tile of a dense mask
  std::vector<std::string> skipped;     ///< algorithms and instruction sets that were not chosen: "name: reason"
};
namespace detail {
QKV_API AttentionPlan plan(
    const AnyView& q, const AnyView& k, const AnyView& v, const AttentionOptions& options, Context& context);
}  // namespace detail
template <Operand Q> AttentionPlan attention_plan(const Q& q, In<Q, 4> k, In<Q, 4> v,
    const AttentionOptions& options = {}, Context& context = Context::default_context()) {
  return detail::plan(In<Q, 4>(q), k, v, options, context);
}

/// Fills factors [B, H, Tq, Tk] with what dropout multiplies weight (b, h, i, j) by: 0 or 65536/(65536-t); 1 where
/// it is not active. OptionError for p, active or not.
QKV_API void dropout_factors(const Dropout& dropout, View<float, 4> factors);

// Usual mistakes in a call, each a sentence instead of the list of all overloads: these fit where none of those does.
namespace wrong_calls {

/// Stands for an argument of any type.
struct Any {
  Any() = default;
  template <class T> Any(const T&) {}
};
struct Given {  ///< without a default: only a call that names it fits
  template <class T> Given(const T&) {}
};
struct Outputs {
  Any out{}, lse{}, weights{}, kind{}, lse_low{};
};
struct Gradients {
  Any dq{}, dk{}, dv{}, dbias{}, dsinks{}, dposition_bias{}, dk_sums{}, dv_sums{}, dlse{}, accumulate{}, lse_low{};
};
struct Options {
  Given causal;
  Any mask{}, bias{}, scale{}, softcap{}, empty_row{}, dropout{};
};
template <class X> constexpr bool kNever = false;

}  // namespace wrong_calls

template <class Call = void> void attention_forward(
    wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Outputs&, const AttentionOptions& = {}) {
  static_assert(
      wrong_calls::kNever<Call>, "qkv: outputs must be tensors or views that are not const, out of the type of q");
}
template <class Call = void> void attention_forward(
    wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Outputs&, const wrong_calls::Options&) {
  static_assert(wrong_calls::kNever<Call>, "qkv: options have no .causal: write {.mask = qkv::Mask::causal()}");
}
template <class Call = void> void attention_backward(wrong_calls::Any, wrong_calls::Any, wrong_calls::Any,
    wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Gradients&, const AttentionOptions& = {}) {
  static_assert(wrong_calls::kNever<Call>,
      "qkv: q, k, v, out, dout and gradients must be tensors or views of four axes and one element type, lse those of "
      "forward, gradients not const; qkv/easy.h takes std::vector and sizes");
}
template <class Call = void> void attention_backward(wrong_calls::Any, wrong_calls::Any, wrong_calls::Any,
    wrong_calls::Any, wrong_calls::Any, wrong_calls::Any, const wrong_calls::Gradients&, const wrong_calls::Options&) {
  static_assert(wrong_calls::kNever<Call>, "qkv: options have no .causal: write {.mask = qkv::Mask::causal()}");
}

}  // namespace qkv::inline v0
