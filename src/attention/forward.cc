// Forward attention and the weights of a dense batch: its checks. Not: the work (forward_driver.h).
#include "attention/forward_driver.h"
#include "core/check.h"
#include "core/overlap.h"

namespace qkv {
inline namespace v0 {

namespace {

template <class T>
void forward(const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
             const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, const View<Accumulator<T>, 4>* weights,
             const AttentionOptions& options, WeightsKind kind, Context& context) {
  CallMemory memory;
  const Problem<T> p = make_problem(function, q, k, v, options, context, Use::kOutput, &memory);
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(lse.is_null() || lse.sizes() == typename View<float, 3>::Sizes{p.batch, p.num_heads, p.q_len}, function,
                    "lse must be [B, H, Tq] or null: got ", lse, " for out ", out);
  if (weights != nullptr) check_sizes(function, "weights", *weights, p.batch, p.num_heads, p.q_len, p.kv_len);
  const NamedBox outputs[] = {
      {"out", out}, {"lse", lse}, {"weights", weights == nullptr ? View<Accumulator<T>, 4>{} : *weights}};
  const NamedBox inputs[] = {{"q", q},         {"k", k},           {"v", v},
                             {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
  CaptureJob<T> capture(function, p, options.capture, context, false);
  const View<Accumulator<T>, 4> wanted = weights == nullptr ? View<Accumulator<T>, 4>{} : *weights;
  forward_batch<T>(Batch<T>(p), {out, lse, wanted, kind}, capture.if_wanted(), context);
}

template <class T>
void weights(const View<const T, 4>& q, const View<const T, 4>& k, const View<Accumulator<T>, 4>& result,
             const AttentionOptions& options, WeightsKind kind, Context& context) {
  constexpr const char* function = "attention_weights";
  CallMemory memory;
  const Problem<T> p = make_problem(function, q, k, {}, options, context, Use::kWeights, &memory);
  check_sizes(function, "weights", result, p.batch, p.num_heads, p.q_len, p.kv_len);
  const NamedBox outputs[] = {{"weights", result}};
  const NamedBox inputs[] = {{"q", q}, {"k", k}, {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
  CaptureJob<T> capture(function, p, options.capture, context, false);
  forward_batch<T>(Batch<T>(p), {{}, {}, result, kind}, capture.if_wanted(), context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                             \
  void attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out,              \
                         View<Accumulator<T>, 3> lse, const AttentionOptions& options, Context& context) {        \
    forward<T>("attention_forward", q, k, v, out, lse, nullptr, options, WeightsKind::kSoftmax, context);         \
  }                                                                                                               \
  void attention_forward_with_weights(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out, \
                                      View<Accumulator<T>, 3> lse, View<Accumulator<T>, 4> result,                \
                                      const AttentionOptions& options, WeightsKind kind, Context& context) {      \
    forward<T>("attention_forward_with_weights", q, k, v, out, lse, &result, options, kind, context);             \
  }                                                                                                               \
  void attention_weights(View<const T, 4> q, View<const T, 4> k, View<Accumulator<T>, 4> result,                  \
                         const AttentionOptions& options, WeightsKind kind, Context& context) {                   \
    weights<T>(q, k, result, options, kind, context);                                                             \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
