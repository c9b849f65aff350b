// Backward attention of a dense and of a ragged batch: checks.
#include "attention/backward/backward_driver.h"
#include "attention/backward/shared_gradients.h"
#include "attention/call/memory_checks.h"
#include "attention/capture/capture.h"
#include "attention/plan/part_rows.h"

namespace qkv::inline v0 {
namespace {

/// Throws ShapeError unless everything has the sizes of the call and no gradient shares memory; in a ragged batch,
/// which has `offsets` and whose tokens are [total, H, ..], p is the problem of all.
void check_gradients(const char* function, const Problem& p, const RaggedOffsets* offsets, const BackwardInputs& in,
    const Gradients& g, const AttentionOptions& options) {
  const bool ragged = offsets != nullptr;
  const auto check_rows = [&](const char* name, const AnyView& x, Index heads, Index length, Index width) {
    ragged ? check_sizes(function, name, x, length, heads, width)
           : check_sizes(function, name, x, p.batch, heads, length, width);
  };
  const auto has_rows = [&](const AnyView& x) {
    return ragged ? x.has_sizes(p.q_len, p.num_heads) : x.has_sizes(p.batch, p.num_heads, p.q_len);
  };
  const char* const sizes = ragged ? " must be [total_q, H]" : " must be [B, H, Tq]";
  check_rows("out", in.out, p.num_heads, p.q_len, p.v_head_dim);
  check_rows("dout", in.dout, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(
      has_rows(in.lse), function, "lse", sizes, ", as forward returned it: got ", in.lse, " for out ", in.out);
  for (const auto& [name, x] : {std::pair{"dlse", &g.dlse}, std::pair{"lse_low", &g.lse_low}}) {
    check<ShapeError>(x->is_null() || has_rows(*x), function, name, sizes, " or null: got ", *x, " for out ", in.out);
  }
  if (!g.dq.is_null()) check_rows("dq", g.dq, p.num_heads, p.q_len, p.head_dim);
  const auto check_keys = [&](const char* name, const AnyView& rounded, const AnyView& sums, Index width) {
    if (!rounded.is_null()) check_rows(name, rounded, p.num_kv_heads, p.kv_len, width);
    if (sums.is_null()) return;
    check<OptionError>(rounded.is_null(), function, name, " and ", name, "_sums must not both be given: got both");
    check_rows(name, sums, p.num_kv_heads, p.kv_len, width);
  };
  check_keys("dk", g.dk, g.dk_sums, p.head_dim);
  check_keys("dv", g.dv, g.dv_sums, p.v_head_dim);
  check_shared_gradients(function, p, g);
  const NamedBox outputs[] = {{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dk_sums", g.dk_sums}, {"dv_sums", g.dv_sums},
      {"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dposition_bias", g.dposition_bias}};
  const Offsets none, &queries = ragged ? offsets->q_offsets : none, &keys = ragged ? offsets->kv_offsets : none;
  const NamedBox inputs[] = {{"out", in.out}, {"lse", in.lse}, {"dout", in.dout}, {"dlse", g.dlse},
      {"lse_low", g.lse_low}, {"q_offsets", box_of(queries)}, {"kv_offsets", box_of(keys)}};
  check_memory(function, p, options.mask.node(), outputs, inputs, written_results(options.capture, true));
}

/// By a call on whole strips. The rows that are added have lse = inf, so that their weights are 0.
void backward_with(const StripRows& strips, const Problem& p, const BackwardInputs& in, Gradients g, Context& context) {
  const StripCopy q(p.q, strips), out(in.out, strips), dout(in.dout, strips),
      lse(in.lse, strips, StripCopy::Fill::kInfinity), dlse(g.dlse, strips), dq(g.dq, strips);
  g.dq = dq.wide();
  g.dlse = dlse.wide();
  g.lse_low = {};
  backward_dense(widened(p, strips, q.wide()), {out.wide(), lse.wide(), dout.wide()}, g, context);
  dq.copy_back();
}

}  // namespace

namespace detail {

void backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out, const AnyView& lse,
    const AnyView& dout, const AnyGradients& gradients, const AttentionOptions& options, Context& context) {
  constexpr const char* function = "attention_backward";
  CallMemory memory;
  Problem p = make_dense_problem(function, q, {k, v}, options, context, memory);
  p.use_sum_tiles();
  const BackwardInputs inputs{out, lse, dout};
  check_gradients(function, p, nullptr, inputs, gradients, options);
  Gradients wanted = gradients;  // one view each of dk and dv, whose type says whether sums are rounded
  if (!gradients.dk_sums.is_null()) wanted.dk = gradients.dk_sums;
  if (!gradients.dv_sums.is_null()) wanted.dv = gradients.dv_sums;
  with_sums(q.type, [&]<class Sum>(Sum) {
    CaptureJob<Sum> capture(function, p, options.capture, true);
    if (const StripRows strips = rows_of_backward(p); strips.added)
      return backward_with(strips, p, inputs, wanted, context);
    backward_dense(p, inputs, wanted, context);
    capture.run_backward(lse, dout, context);
  });
}

void varlen_backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out, const AnyView& lse,
    const AnyView& dout, const AnyGradients& gradients, const RaggedOffsets& offsets, const AttentionOptions& options,
    Context& context) {
  constexpr const char* function = "attention_varlen_backward";
  RaggedCall r(function, q, k, v, offsets, options, context);
  r.use_sum_tiles();
  check_gradients(function, r.all, &offsets, {out, lse, dout}, gradients, options);
  Gradients of_batch = gradients;
  for (AnyView* each : {&of_batch.dq, &of_batch.dk, &of_batch.dv, &of_batch.dlse}) *each = as_one_sequence(*each);
  backward_batch(Batch(r), {as_one_sequence(out), as_one_sequence(lse), as_one_sequence(dout)}, of_batch, context);
}

}  // namespace detail
}  // namespace qkv::inline v0
