// Attention forward and backward, tiled (online softmax, O(T) memory), bitwise equal for any number of threads.
//
//   s[i,j]  = softcap(scale * q[i].k[j]) + bias[i,j]       softcap(x) = c * tanh(x / c), off when c = 0
//             (+ position_bias, then score_mod of it, where they are given)
//   m[i]    = max(sink, max over kept j of s[i,j])         keep = the mask; select, never add. sink: only where given
//   p[i,j]  = keep(i,j) ? exp(s[i,j] - m[i]) : 0
//   w[i,j]  = p[i,j] / l[i],  l[i] = sum_j p[i,j] + exp(sink - m[i])     weights
//   out[i]  = sum_j dropout(w)[i,j] * v[j]
//   lse[i]  = m[i] + log(l[i])                             natural log; -inf for an empty row
//
// Shapes: B batch, H query heads, Hkv key/value heads (H % Hkv == 0; head h reads h / (H / Hkv)), Tq queries, Tk keys,
// D width of q and k, Dv width of v. Views are strided; the last axis of q, k, v, out and their gradients has stride 1.
// Vaswani 2017 (arXiv:1706.03762) eq. 1; Milakov 2018 (1805.02867); Dao 2023 (2307.08691) alg. 1 and 2.
//
// Errors: ShapeError (sizes, strides, overlap of an output with anything), OptionError (scale, softcap, p, a mask that leaves
// open where its diagonal lies).
// Sizes: B, H, Tq or Tk may be 0; D and Dv may not. Thread safety: any number of concurrent calls.
// NaN or infinity in a key or value that no kept pair reads contributes nothing; in one that is read it propagates.
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

namespace qkv {
inline namespace v0 {

/// What a row gives in which no key may be attended. Its lse is -inf and it gives nothing to dq, dk, dbias in every case.
enum class EmptyRow {
  kZero,  ///< out 0, weights 0, nothing to dv
  kMean,  ///< weights 1/Tk over all Tk keys, masked ones too: what a finite fill such as -1e20 gives
  kNaN    ///< out and weights NaN, dv of the whole head NaN: what a fill of -inf gives
};

/// Dropout on the weights: Philox 4x32-10, key = seed, counter = (i, j/8, (b*H + h) mod 2^32, 0); key j uses the 16-bit half
/// j%8 of the four words, low half of word 0 first; dropped iff half < t, t = round(p * 65536); kept ones times
/// 65536/(65536-t). The same bits for any tile, thread count and ISA; regenerated in backward. Active only when training.
struct Dropout {
  double p = 0;  ///< in [0, 1]; p > 0 that rounds to t = 0 is an OptionError
  std::uint64_t seed = 0;
  bool training = false;
  Index first_sequence = 0;  ///< the number b of sequence 0: lets one sequence alone repeat its place in a batch

  bool active() const { return training && p > 0; }
};

/// A float bias added to the scores, [B|1, H|1, Tq|1, Tk|1], of the element type of q, float where that has 16 bits. -inf = not
/// kept. Borrowed.
struct BiasView {
  BiasView() = default;
  BiasView(View<const float, 4> bias) : f32(bias) {}
  BiasView(View<const double, 4> bias) : f64(bias) {}
  BiasView(View<float, 4> bias) : f32(bias) {}
  BiasView(View<double, 4> bias) : f64(bias) {}
  BiasView(const Tensor<float>& bias) : f32(bias) {}
  BiasView(const Tensor<double>& bias) : f64(bias) {}
  BiasView(const Tensor<float>&&) = delete;  // it would be gone before the call
  BiasView(const Tensor<double>&&) = delete;

  View<const float, 4> f32;
  View<const double, 4> f64;
};

/// One learned logit a query head, [H], of the element type of q, float where that has 16 bits: a key without a value that
/// every row of the head may attend, neither scaled nor capped (gpt-oss). Rows of weights then sum to less than 1, and none is
/// empty: where no key is kept, out is 0 and lse the sink. -inf: that head has none. Borrowed. Xiao 2023 (arXiv:2309.17453),
/// section 3.2.
struct SinkView {
  SinkView() = default;
  SinkView(View<const float, 1> sinks) : f32(sinks) {}
  SinkView(View<const double, 1> sinks) : f64(sinks) {}
  SinkView(View<float, 1> sinks) : f32(sinks) {}
  SinkView(View<double, 1> sinks) : f64(sinks) {}
  SinkView(const Tensor<float>& sinks) : f32(sinks) {}
  SinkView(const Tensor<double>& sinks) : f64(sinks) {}
  SinkView(const Tensor<float>&&) = delete;  // as of BiasView
  SinkView(const Tensor<double>&&) = delete;

  bool is_null() const { return f32.is_null() && f64.is_null(); }

  View<const float, 1> f32;
  View<const double, 1> f64;
};

struct AttentionOptions {
  Mask mask{};                    ///< default: everything is kept
  BiasView bias{};                ///< default: none
  std::optional<double> scale{};  ///< default 1/sqrt(D); any finite number
  double softcap = 0;             ///< >= 0; 0 = off
  EmptyRow empty_row = EmptyRow::kZero;
  Dropout dropout{};
  SinkView sinks{};                             ///< default: none
  PositionBias position_bias{};                 ///< ALiBi, T5, relative; beside bias
  std::shared_ptr<const ScoreMod> score_mod{};  ///< after soft cap and biases, before the mask
  CaptureRequest capture{};                     ///< default: nobody looks; {look, seen} (capture.h)
};

enum class WeightsKind {
  kSoftmax,  ///< after softmax, before dropout: rows sum to 1 (0 where empty and kZero)
  kApplied   ///< after dropout: what multiplied v
};

/// What forward writes, each in full. A null view is not computed; out's bits do not depend on what is asked for beside it.
/// OptionError where nothing is asked for, here or by a capture, and for lse without out.
/// weights are S x S because they were asked to be, and need no other memory of that order. Beside out they cost at most half of
/// forward alone while a strip's exponentials stay in the cache (Tk up to 8,192 in f32), otherwise a second sweep over the keys.
template <class T>
struct AttentionOutputs {
  View<T, 4> out{};                          ///< [B, H, Tq, Dv]
  View<Accumulator<T>, 3> lse{};             ///< [B, H, Tq]
  View<Accumulator<T>, 4> weights{};         ///< [B, H, Tq, Tk]
  WeightsKind kind = WeightsKind::kSoftmax;  ///< of weights
};

/// outputs from q [B,H,Tq,D], k [B,Hkv,Tk,D], v [B,Hkv,Tk,Dv]; v may be null where out is not asked for.
QKV_API void attention_forward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
                               const AttentionOutputs<float>& outputs, const AttentionOptions& options = {},
                               Context& context = Context::default_context());
QKV_API void attention_forward(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
                               const AttentionOutputs<double>& outputs, const AttentionOptions& options = {},
                               Context& context = Context::default_context());
QKV_API void attention_forward(View<const BFloat16, 4> q, View<const BFloat16, 4> k, View<const BFloat16, 4> v,
                               const AttentionOutputs<BFloat16>& outputs, const AttentionOptions& options = {},
                               Context& context = Context::default_context());
QKV_API void attention_forward(View<const Float16, 4> q, View<const Float16, 4> k, View<const Float16, 4> v,
                               const AttentionOutputs<Float16>& outputs, const AttentionOptions& options = {},
                               Context& context = Context::default_context());

/// What backward writes. A null view is not computed. Every given one is overwritten in full, or added to with `accumulate`.
/// 16-bit gradients are summed in float and rounded once.
template <class T>
struct AttentionGradients {
  View<T, 4> dq{};                           ///< [B, H, Tq, D]
  View<T, 4> dk{};                           ///< [B, Hkv, Tk, D]
  View<T, 4> dv{};                           ///< [B, Hkv, Tk, Dv]
  View<Accumulator<T>, 4> dbias{};           ///< the bias's own (broadcast) shape: summed over the axes that repeat
  View<Accumulator<T>, 1> dsinks{};          ///< [H], needs sinks: -sum_bi exp(sink[h] - lse[b,h,i]) * delta[b,h,i]
  View<Accumulator<T>, 2> dposition_bias{};  ///< [rows, H] of the position bias: of its table, or of ALiBi's slopes [1, H]
  View<const Accumulator<T>, 3> dlse{};      ///< input, optional: gradient arriving at lse [B, H, Tq]
  bool accumulate = false;
};

/// Gradients of sum(out * dout) (+ sum(lse * dlse)), from what forward was given and returned. Needs lse. Where k and v are
/// part of the keys, out and lse may be those of all keys (merge_attention): the result is this part's share of the gradients.
///   delta = rowsum(dout * out) - dlse;  dP = dout v^T;  dS = P * (dP - delta)
///   dq = scale dS k;  dk = scale dS^T q;  dv = P^T dout
QKV_API void attention_backward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
                                View<const float, 4> out, View<const float, 3> lse, View<const float, 4> dout,
                                const AttentionGradients<float>& gradients, const AttentionOptions& options = {},
                                Context& context = Context::default_context());
QKV_API void attention_backward(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
                                View<const double, 4> out, View<const double, 3> lse, View<const double, 4> dout,
                                const AttentionGradients<double>& gradients, const AttentionOptions& options = {},
                                Context& context = Context::default_context());
QKV_API void attention_backward(View<const BFloat16, 4> q, View<const BFloat16, 4> k, View<const BFloat16, 4> v,
                                View<const BFloat16, 4> out, View<const float, 3> lse, View<const BFloat16, 4> dout,
                                const AttentionGradients<BFloat16>& gradients, const AttentionOptions& options = {},
                                Context& context = Context::default_context());
QKV_API void attention_backward(View<const Float16, 4> q, View<const Float16, 4> k, View<const Float16, 4> v,
                                View<const Float16, 4> out, View<const float, 3> lse, View<const Float16, 4> dout,
                                const AttentionGradients<Float16>& gradients, const AttentionOptions& options = {},
                                Context& context = Context::default_context());

/// Attention over disjoint sets of keys, merged: outs[n] [B,H,Tq,Dv], lses[n] [B,H,Tq] -> out, lse. Fixed order, so fixed bits.
/// lse = -inf is the identity. lse_out = log sum_n exp(lse_n);  out = sum_n exp(lse_n - lse_out) out_n. 16-bit outs are summed
/// in float and rounded once.
QKV_API void merge_attention(std::span<const View<const float, 4>> outs, std::span<const View<const float, 3>> lses,
                             View<float, 4> out, View<float, 3> lse, Context& context = Context::default_context());
QKV_API void merge_attention(std::span<const View<const double, 4>> outs, std::span<const View<const double, 3>> lses,
                             View<double, 4> out, View<double, 3> lse, Context& context = Context::default_context());
QKV_API void merge_attention(std::span<const View<const BFloat16, 4>> outs, std::span<const View<const float, 3>> lses,
                             View<BFloat16, 4> out, View<float, 3> lse, Context& context = Context::default_context());
QKV_API void merge_attention(std::span<const View<const Float16, 4>> outs, std::span<const View<const float, 3>> lses,
                             View<Float16, 4> out, View<float, 3> lse, Context& context = Context::default_context());

/// Gradients of merge_attention for each part: douts[n] = w_n dout;  dlses[n] = w_n (dout . (out_n - out) + dlse), w_n =
/// exp(lse_n - lse).
QKV_API void merge_attention_backward(std::span<const View<const float, 4>> outs, std::span<const View<const float, 3>> lses,
                                      View<const float, 4> out, View<const float, 3> lse, View<const float, 4> dout,
                                      View<const float, 3> dlse, std::span<const View<float, 4>> douts,
                                      std::span<const View<float, 3>> dlses, Context& context = Context::default_context());
QKV_API void merge_attention_backward(std::span<const View<const double, 4>> outs, std::span<const View<const double, 3>> lses,
                                      View<const double, 4> out, View<const double, 3> lse, View<const double, 4> dout,
                                      View<const double, 3> dlse, std::span<const View<double, 4>> douts,
                                      std::span<const View<double, 3>> dlses, Context& context = Context::default_context());
QKV_API void merge_attention_backward(std::span<const View<const BFloat16, 4>> outs, std::span<const View<const float, 3>> lses,
                                      View<const BFloat16, 4> out, View<const float, 3> lse, View<const BFloat16, 4> dout,
                                      View<const float, 3> dlse, std::span<const View<BFloat16, 4>> douts,
                                      std::span<const View<float, 3>> dlses, Context& context = Context::default_context());
QKV_API void merge_attention_backward(std::span<const View<const Float16, 4>> outs, std::span<const View<const float, 3>> lses,
                                      View<const Float16, 4> out, View<const float, 3> lse, View<const Float16, 4> dout,
                                      View<const float, 3> dlse, std::span<const View<Float16, 4>> douts,
                                      std::span<const View<float, 3>> dlses, Context& context = Context::default_context());

/// What a call would do, without doing it.
struct AttentionPlan {
  /// "tiled"; "decode": few queries, many keys; "none": nothing to compute. A ragged batch: "tiled and decode" where sequences
  /// differ, and the sizes below are those of the tiled ones.
  std::string algorithm;
  Isa isa = Isa::kScalar;
  int threads = 1;
  Index query_tile = 0;  ///< queries a work item takes
  Index key_tile = 0;    ///< keys a chunk holds; chunks are counted from key 0
  Index work_items = 0;
  Index full_tiles = 0;      ///< tiles (query strip x key chunk) computed without looking at the mask
  Index partial_tiles = 0;   ///< computed with a bitmap
  Index skipped_tiles = 0;   ///< never read
  double forward_flops = 0;  ///< 2 * (D + Dv) per live pair
  double backward_flops = 0;
  std::size_t forward_scratch_bytes = 0;   ///< a thread
  std::size_t forward_shared_bytes = 0;    ///< decode: what parts of the keys merge into; ragged: the order of sequences
  std::size_t backward_scratch_bytes = 0;  ///< a thread, dbias asked for where there is a bias
  std::size_t backward_shared_bytes = 0;   ///< delta, lse in two parts, turns; 16-bit types: dq of the heads in flight in float
  std::size_t position_bias_bytes = 0;     ///< shared, forward and backward: one number a head and distance
  std::size_t mask_bytes = 0;              ///< shared, forward and backward: two bits for each tile of a dense mask
  std::vector<std::string> skipped;        ///< candidates that were not taken, each with its reason
};
QKV_API AttentionPlan attention_plan(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
                                     const AttentionOptions& options = {}, Context& context = Context::default_context());
QKV_API AttentionPlan attention_plan(View<const double, 4> q, View<const double, 4> k, View<const double, 4> v,
                                     const AttentionOptions& options = {}, Context& context = Context::default_context());
QKV_API AttentionPlan attention_plan(View<const BFloat16, 4> q, View<const BFloat16, 4> k, View<const BFloat16, 4> v,
                                     const AttentionOptions& options = {}, Context& context = Context::default_context());
QKV_API AttentionPlan attention_plan(View<const Float16, 4> q, View<const Float16, 4> k, View<const Float16, 4> v,
                                     const AttentionOptions& options = {}, Context& context = Context::default_context());

/// One as it stands in the formula: factor 0 or 65536/(65536-t) for weight (b, h, i, j). Fills factors [B, H, Tq, Tk].
QKV_API void dropout_factors(const Dropout& dropout, View<float, 4> factors);

}  // namespace v0
}  // namespace qkv
