// Forward attention of a dense and of a ragged batch: checks. Not: the work (forward_driver.h), calls on a cache
// (cache/cached_forward.cc).
#include "attention/forward/forward_checks.h"
#include "attention/forward/forward_driver.h"
#include "core/overlap.h"

namespace qkv::inline v0 {
namespace {

template <class T>
void forward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
             const AttentionOutputs<T>& outputs, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_forward";
  CallMemory memory;
  const Use use = is_asked_for(outputs.out) ? Use::kOutput : Use::kWeights;
  const Problem<T> p = make_problem(function, q, k, v, options, context, use, &memory);
  check_asked_for(function, p, outputs, options);
  check_sizes_of(function, p, outputs);
  if (is_asked_for(outputs.weights)) {
    check_sizes(function, "weights", outputs.weights, p.batch, p.num_heads, p.q_len, p.kv_len);
  }
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}, {"weights", outputs.weights}};
  const NamedBox inputs[] = {{"q", q},         {"k", k},           {"v", v},
                             {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, boxes, inputs);
  CaptureJob<T> capture(function, p, options.capture, context, false);
  forward_batch(Batch<T>(p), outputs, capture.if_wanted(), context);
}

template <class T>
void forward(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v, const RaggedOutputs<T>& outputs,
             const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_varlen_forward";
  const Use use = is_asked_for(outputs.out) ? Use::kMaskLater : Use::kWeightsMaskLater;
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context, use);
  const Problem<T>& p = r.shared;
  const View<Accumulator<T>, 1>& weights = outputs.weights;
  check_asked_for(function, p, outputs, options);
  if (is_asked_for(outputs.out)) check_tokens(function, "out", outputs.out, q.size(0), p.num_heads, p.v_head_dim);
  check<ShapeError>(outputs.lse.is_null() || outputs.lse.sizes() == typename View<T, 2>::Sizes{q.size(0), p.num_heads},
                    function, "lse must be [total_q, H] or null: got ", outputs.lse, " for q ", q);
  if (is_asked_for(weights)) {
    const Index count = ragged_weights_count(offsets, p.num_heads);
    check<ShapeError>(weights.size(0) == count, function, "weights must have H * Tq * Tk numbers for each sequence, ", count,
                      " together: got ", weights);
    check<ShapeError>(weights.stride(0) == 1 || count <= 1, function, "weights must have stride 1: got ", weights.stride(0));
  }
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}, {"weights", weights}};
  const NamedBox inputs[] = {{"q", q},         {"k", k},           {"v", v},
                             {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, boxes, inputs);
  const View<Accumulator<T>, 4> weights_row(weights.data(), {1, 1, 1, weights.size(0)});
  forward_batch<T>(Batch<T>(r), {one_sequence(outputs.out), one_sequence(outputs.lse), weights_row, outputs.kind}, nullptr,
                   context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                        \
  void attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOutputs<T>& outputs,     \
                         const AttentionOptions& options, Context& context) {                                                \
    forward<T>(q, k, v, outputs, options, context);                                                                          \
  }                                                                                                                          \
  void attention_varlen_forward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, const RaggedOutputs<T>& outputs, \
                                const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {           \
    forward<T>(q, k, v, outputs, offsets, options, context);                                                                 \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
