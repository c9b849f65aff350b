// Backward attention of a dense and of a ragged batch: checks.
#include <limits>

#include "attention/backward/backward_driver.h"
#include "attention/backward/gradient_sums.h"
#include "attention/backward/shared_gradients.h"
#include "attention/capture/capture.h"
#include "attention/plan/placed_rows.h"
#include "core/check.h"
#include "core/overlap.h"

namespace qkv::inline v0 {
namespace {

template <class T>
[[gnu::noinline]] void check_sums(const char* function, const Problem<T>& p, const char* name, const View<T, 4>& rounded,
                                  const View<Accumulator<T>, 4>& sums, Index width) {
  if (sums.is_null()) return;
  check<OptionError>(rounded.is_null(), function, name, " and ", name, "_sums must not both be given: got both");
  check_sizes(function, name, sums, p.batch, p.num_kv_heads, p.kv_len, width);
}

template <class T>
void check_gradients(const char* function, const Problem<T>& p, const AttentionGradients<T>& g, const View<const T, 4>& out,
                     const View<const Accumulator<T>, 3>& lse, const View<const T, 4>& dout) {
  const typename View<T, 3>::Sizes rows{p.batch, p.num_heads, p.q_len};
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check_sizes(function, "dout", dout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(lse.sizes() == rows, function, "lse must be [B, H, Tq], as forward returned it: got ", lse, " for out ",
                    out);
  const auto check_numbers = [&](const char* name, const View<const Accumulator<T>, 3>& numbers) {
    check<ShapeError>(numbers.is_null() || numbers.sizes() == rows, function, name, " must be [B, H, Tq] or null: got ",
                      numbers, " for out ", out);
  };
  check_numbers("dlse", g.dlse);
  check_numbers("lse_low", g.lse_low);
  if (!g.dq.is_null()) check_sizes(function, "dq", g.dq, p.batch, p.num_heads, p.q_len, p.head_dim);
  if (!g.dk.is_null()) check_sizes(function, "dk", g.dk, p.batch, p.num_kv_heads, p.kv_len, p.head_dim);
  if (!g.dv.is_null()) check_sizes(function, "dv", g.dv, p.batch, p.num_kv_heads, p.kv_len, p.v_head_dim);
  check_sums(function, p, "dk", g.dk, g.dk_sums, p.head_dim);
  check_sums(function, p, "dv", g.dv, g.dv_sums, p.v_head_dim);
  check_shared_gradients(function, p, g.dbias, g.dsinks, g.dposition_bias);
  const NamedBox outputs[] = {
      {"dq", g.dq},           {"dk", g.dk},       {"dv", g.dv},         {"dk_sums", g.dk_sums},
      {"dv_sums", g.dv_sums}, {"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dposition_bias", g.dposition_bias}};
  const NamedBox inputs[] = {{"q", p.q},
                             {"k", p.k},
                             {"v", p.v},
                             {"bias", p.bias},
                             {"out", out},
                             {"lse", lse},
                             {"dout", dout},
                             {"dlse", g.dlse},
                             {"lse_low", g.lse_low},
                             {"sinks", p.sinks},
                             {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
}

/// By a call on whole strips. The rows that are added have lse = inf, so that their weights are 0.
template <class T>
[[gnu::noinline]] void backward_with(const StripRows& rows, const Problem<T>& p, const BackwardInputs<T>& inputs,
                                     const AttentionGradients<T>& gradients, const AttentionOptions& options,
                                     Context& context) {
  using Sum = Accumulator<T>;
  const Sum infinity = std::numeric_limits<Sum>::infinity();
  StripCopy q(row_bytes(p.q), rows), out(row_bytes(inputs.out), rows), dout(row_bytes(inputs.dout), rows),
      lse(row_bytes(inputs.lse), rows, &infinity, sizeof(Sum)), dlse(row_bytes(gradients.dlse), rows),
      dq(row_bytes(gradients.dq), rows);
  AttentionGradients<T> wide = gradients;
  wide.dq = dq.view(gradients.dq);
  wide.dlse = dlse.view(gradients.dlse);
  wide.lse_low = {};
  attention_backward(q.view(p.q), p.k, p.v, out.view(inputs.out), lse.view(inputs.lse), dout.view(inputs.dout), wide,
                     options_of(options, p, rows), context);
  dq.copy_to(row_bytes(gradients.dq));
}

template <class T>
[[gnu::noinline]] void backward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                                const View<const T, 4>& out, const View<const Accumulator<T>, 3>& lse,
                                const View<const T, 4>& dout, const AttentionGradients<T>& gradients,
                                const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_backward";
  CallMemory call_memory;
  const Problem<T> p = make_problem(function, q, k, v, options, context, Use::kOutput, &call_memory);
  check_gradients(function, p, gradients, out, lse, dout);
  CaptureJob<T> capture(function, p, options.capture, context, true);
  if (const StripRows rows = rows_of_backward(p); rows.added) {
    backward_with(rows, p, {out, lse, dout}, gradients, options, context);
    return;
  }
  AttentionGradients<T> wanted = gradients;
  if constexpr (!kRoundedAtEnd<T>) {  // sums are gradients
    if (!gradients.dk_sums.is_null()) wanted.dk = gradients.dk_sums;
    if (!gradients.dv_sums.is_null()) wanted.dv = gradients.dv_sums;
  }
  const Listed<T> listed(p);
  if (listed.applies_backward()) {
    backward_listed(p, listed, {out, lse, dout}, wanted, context);
  } else {
    backward_batch(Batch<T>(p), {out, lse, dout}, wanted, context);
  }
  capture.run_backward({lse, dout}, context);
}

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

#define QKV_DEFINE(T)                                                                                                       \
  void attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out,                 \
                          View<const Accumulator<T>, 3> lse, View<const T, 4> dout, const AttentionGradients<T>& gradients, \
                          const AttentionOptions& options, Context& context) {                                              \
    backward<T>(q, k, v, out, lse, dout, gradients, options, context);                                                      \
  }                                                                                                                         \
  void attention_varlen_backward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<const T, 3> out,          \
                                 View<const Accumulator<T>, 2> lse, View<const T, 3> dout,                                  \
                                 const RaggedGradients<T>& gradients, const RaggedOffsets& offsets,                         \
                                 const AttentionOptions& options, Context& context) {                                       \
    backward<T>(q, k, v, out, lse, dout, gradients, offsets, options, context);                                             \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
