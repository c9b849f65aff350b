// Forward attention and the weights of a ragged batch: its checks. Not: the work (forward_driver.h).
#include "attention/forward_driver.h"
#include "core/check.h"
#include "core/overlap.h"

namespace qkv {
inline namespace v0 {
namespace {

template <class T>
void check_weights(const char* function, const RaggedProblem<T>& r, const View<Accumulator<T>, 1>& weights) {
  const Index count = ragged_weights_count(r.offsets, r.shared.num_heads);
  check<ShapeError>(weights.size(0) == count, function, "weights must have H * Tq * Tk numbers for each sequence, ", count,
                    " together: got ", weights);
  check<ShapeError>(weights.stride(0) == 1 || count <= 1, function, "weights must have stride 1: got ", weights.stride(0));
}

/// [count] as forward_batch takes weights.
template <class T>
View<T, 4> as_one_row(const View<T, 1>& weights) {
  return {weights.data(), {1, 1, 1, weights.size(0)}};
}

template <class T>
void forward(const char* function, const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v,
             const View<T, 3>& out, const View<Accumulator<T>, 2>& lse, const View<Accumulator<T>, 1>* weights,
             WeightsKind kind, const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context);
  const Problem<T>& shared = r.shared;
  check_tokens(function, "out", out, q.size(0), shared.num_heads, shared.v_head_dim);
  check<ShapeError>(lse.is_null() || lse.sizes() == typename View<float, 2>::Sizes{q.size(0), shared.num_heads}, function,
                    "lse must be [total_q, H] or null: got ", lse, " for out ", out);
  const View<Accumulator<T>, 1> wanted = weights == nullptr ? View<Accumulator<T>, 1>{} : *weights;
  if (weights != nullptr) check_weights(function, r, wanted);
  const NamedBox outputs[] = {{"out", out}, {"lse", lse}, {"weights", wanted}};
  const NamedBox inputs[] = {
      {"q", q}, {"k", k}, {"v", v}, {"bias", shared.bias}, {"sinks", shared.sinks}, {"position_bias", position_table(shared)}};
  check_outputs(function, outputs, inputs);
  forward_batch<T>(Batch<T>(r), {one_sequence(out), one_sequence(lse), as_one_row(wanted), kind}, nullptr, context);
}

template <class T>
void weights(const View<const T, 3>& q, const View<const T, 3>& k, const View<Accumulator<T>, 1>& result,
             const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind, Context& context) {
  constexpr const char* function = "attention_varlen_weights";
  // Values are not read: a width of 1, as attention_weights has it.
  const View<const T, 3> unread(k.data(), {k.size(0), k.size(1), 1}, {k.stride(0), k.stride(1), 1});
  const RaggedProblem<T> r(function, q, k, unread, offsets, options, context);
  check_weights(function, r, result);
  const NamedBox outputs[] = {{"weights", result}};
  const NamedBox inputs[] = {
      {"q", q}, {"k", k}, {"bias", r.shared.bias}, {"sinks", r.shared.sinks}, {"position_bias", position_table(r.shared)}};
  check_outputs(function, outputs, inputs);
  if (result.count() > 0) forward_batch<T>(Batch<T>(r), {{}, {}, as_one_row(result), kind}, nullptr, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                         \
  void attention_varlen_forward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<T, 3> out,                   \
                                View<Accumulator<T>, 2> lse, const RaggedOffsets& offsets, const AttentionOptions& options,   \
                                Context& context) {                                                                           \
    forward<T>("attention_varlen_forward", q, k, v, out, lse, nullptr, WeightsKind::kSoftmax, offsets, options, context);     \
  }                                                                                                                           \
  void attention_varlen_forward_with_weights(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<T, 3> out,      \
                                             View<Accumulator<T>, 2> lse, View<Accumulator<T>, 1> result,                     \
                                             const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind, \
                                             Context& context) {                                                              \
    forward<T>("attention_varlen_forward_with_weights", q, k, v, out, lse, &result, kind, offsets, options, context);         \
  }                                                                                                                           \
  void attention_varlen_weights(View<const T, 3> q, View<const T, 3> k, View<Accumulator<T>, 1> result,                       \
                                const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind,              \
                                Context& context) {                                                                           \
    weights<T>(q, k, result, offsets, options, kind, context);                                                                \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
