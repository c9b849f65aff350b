// Backward attention of a ragged batch: its checks. Not: the work (backward_driver.h).
#include "attention/backward/backward_driver.h"
#include "attention/backward/shared_gradients.h"
#include "core/check.h"
#include "core/overlap.h"

namespace qkv::inline v0 {
namespace {

template <class T>
void check_gradients(const char* function, const RaggedProblem<T>& r, const RaggedGradients<T>& g, const View<const T, 3>& out,
                     const View<const Accumulator<T>, 2>& lse, const View<const T, 3>& dout) {
  const Problem<T>& p = r.shared;
  const Index total_q = p.q.size(2), total_k = p.k.size(2);
  const typename View<T, 2>::Sizes rows{total_q, p.num_heads};
  check_tokens(function, "out", out, total_q, p.num_heads, p.v_head_dim);
  check_tokens(function, "dout", dout, total_q, p.num_heads, p.v_head_dim);
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [total_q, H], as forward returned it: got ", lse, " for out ",
                    out);
  check<ShapeError>(g.dlse.is_null() || g.dlse.sizes() == rows, function, "dlse must be [total_q, H] or null: got ", g.dlse,
                    " for out ", out);
  if (!g.dq.is_null()) check_tokens(function, "dq", g.dq, total_q, p.num_heads, p.head_dim);
  if (!g.dk.is_null()) check_tokens(function, "dk", g.dk, total_k, p.num_kv_heads, p.head_dim);
  if (!g.dv.is_null()) check_tokens(function, "dv", g.dv, total_k, p.num_kv_heads, p.v_head_dim);
  check_shared_gradients(function, p, g.dbias, g.dsinks, g.dposition_bias);
  const NamedBox outputs[] = {{"dq", g.dq},       {"dk", g.dk},         {"dv", g.dv},
                              {"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dposition_bias", g.dposition_bias}};
  const NamedBox inputs[] = {
      {"q", p.q},   {"k", p.k},     {"v", p.v},       {"bias", p.bias},   {"out", out},
      {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
}

template <class T>
void backward(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v, const View<const T, 3>& out,
              const View<const Accumulator<T>, 2>& lse, const View<const T, 3>& dout, const RaggedGradients<T>& gradients,
              const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_varlen_backward";
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context);
  check_gradients(function, r, gradients, out, lse, dout);
  const AttentionGradients<T> of_batch{.dq = one_sequence(gradients.dq),
                                       .dk = one_sequence(gradients.dk),
                                       .dv = one_sequence(gradients.dv),
                                       .dbias = gradients.dbias,
                                       .dsinks = gradients.dsinks,
                                       .dposition_bias = gradients.dposition_bias,
                                       .dlse = one_sequence(gradients.dlse),
                                       .accumulate = gradients.accumulate};
  backward_batch(Batch<T>(r), {one_sequence(out), one_sequence(lse), one_sequence(dout)}, of_batch, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                              \
  void attention_varlen_backward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<const T, 3> out, \
                                 View<const Accumulator<T>, 2> lse, View<const T, 3> dout,                         \
                                 const RaggedGradients<T>& gradients, const RaggedOffsets& offsets,                \
                                 const AttentionOptions& options, Context& context) {                              \
    backward<T>(q, k, v, out, lse, dout, gradients, offsets, options, context);                                    \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
