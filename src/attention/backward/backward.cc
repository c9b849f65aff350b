// Backward attention of a dense batch: its checks. Not: the work (backward_driver.h).
#include "attention/backward/listed_backward.h"
#include "attention/backward/shared_gradients.h"
#include "attention/capture/capture.h"
#include "core/check.h"
#include "core/overlap.h"

namespace qkv::inline v0 {
namespace {

template <class T>
void check_gradients(const char* function, const Problem<T>& p, const AttentionGradients<T>& g, const View<const T, 4>& out,
                     const View<const Accumulator<T>, 3>& lse, const View<const T, 4>& dout) {
  const typename View<T, 3>::Sizes rows{p.batch, p.num_heads, p.q_len};
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check_sizes(function, "dout", dout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [B, H, Tq], as forward returned it: got ", lse, " for out ",
                    out);
  check<ShapeError>(g.dlse.is_null() || g.dlse.sizes() == rows, function, "dlse must be [B, H, Tq] or null: got ", g.dlse,
                    " for out ", out);
  if (!g.dq.is_null()) check_sizes(function, "dq", g.dq, p.batch, p.num_heads, p.q_len, p.head_dim);
  if (!g.dk.is_null()) check_sizes(function, "dk", g.dk, p.batch, p.num_kv_heads, p.kv_len, p.head_dim);
  if (!g.dv.is_null()) check_sizes(function, "dv", g.dv, p.batch, p.num_kv_heads, p.kv_len, p.v_head_dim);
  check_shared_gradients(function, p, g.dbias, g.dsinks, g.dposition_bias);
  const NamedBox outputs[] = {{"dq", g.dq},       {"dk", g.dk},         {"dv", g.dv},
                              {"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dposition_bias", g.dposition_bias}};
  const NamedBox inputs[] = {
      {"q", p.q},   {"k", p.k},     {"v", p.v},       {"bias", p.bias},   {"out", out},
      {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
}

template <class T>
void backward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v, const View<const T, 4>& out,
              const View<const Accumulator<T>, 3>& lse, const View<const T, 4>& dout, const AttentionGradients<T>& gradients,
              const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_backward";
  CallMemory call_memory;
  const Problem<T> p = make_problem(function, q, k, v, options, context, Use::kOutput, &call_memory);
  check_gradients(function, p, gradients, out, lse, dout);
  CaptureJob<T> capture(function, p, options.capture, context, true);
  if (const Listed<T> listed(p); backward_by_lists(p, listed)) {
    backward_listed(p, listed, {out, lse, dout}, gradients, context);
  } else {
    backward_batch(Batch<T>(p), {out, lse, dout}, gradients, context);
  }
  capture.run_backward({lse, dout}, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                       \
  void attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out,                 \
                          View<const Accumulator<T>, 3> lse, View<const T, 4> dout, const AttentionGradients<T>& gradients, \
                          const AttentionOptions& options, Context& context) {                                              \
    backward<T>(q, k, v, out, lse, dout, gradients, options, context);                                                      \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
