// Backward attention. Work items are (key range, batch, kv head), key ranges outermost (heads outermost for 16-bit types, so
// that few heads are in flight, gradient_sums.h); what an item does: backward_job.h.
#include <algorithm>
#include <new>

#include "attention/backward_job.h"
#include "attention/backward_memory.h"
#include "attention/capture.h"
#include "attention/shared_gradients.h"
#include "attention/sink_gradient.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"

namespace qkv {
inline namespace v0 {
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
  using Sum = Accumulator<T>;
  constexpr const char* function = "attention_backward";
  CallMemory call_memory;
  const Problem<T> p = make_problem(function, q, k, v, options, context, Use::kOutput, &call_memory);
  check_gradients(function, p, gradients, out, lse, dout);
  CaptureJob<T> capture(function, p, options.capture, context, true);
  BackwardJob<T> job{
      p, out, lse, dout, gradients, BiasGradient<T>(gradients.dbias, p), GradientSums<T>(p, p.key_ranges(), context.threads())};
  if (job.bias.wanted() && !gradients.accumulate) zero_all(gradients.dbias);

  job.position = {gradients.dposition_bias, &p};
  if (job.position.wanted() && !gradients.accumulate) zero_all(gradients.dposition_bias);

  BackwardMemory memory(p, job.sums, job.bias.over_queries);
  memory.position_bytes = job.position.worker_bytes();
  job.kernel_bytes = memory.kernel_bytes;
  job.bias_bytes = memory.bias_bytes;
  job.worker_bytes = memory.worker_bytes();
  const ScratchLease scratch =
      borrow_scratch(context, memory.shared_bytes() + job.worker_bytes * static_cast<std::size_t>(context.threads()));
  const Index rows = p.batch * p.num_heads * p.q_len;
  job.delta = scratch.template as<Sum>();
  job.lse2_high = job.delta + rows;
  job.lse2_low = job.lse2_high + rows;
  job.tile_turns = reinterpret_cast<Turn*>(scratch.data() + memory.row_bytes);
  for (Index t = 0; t < memory.num_turns; ++t) new (&job.tile_turns[t]) Turn(0);
  job.bias_turns = job.tile_turns + memory.num_tile_turns;
  job.sums.place(scratch.data() + memory.row_bytes + memory.turn_bytes, job.bias_turns + p.query_tiles() + 1);
  job.scratch = scratch.data() + memory.shared_bytes();

  const Index items = job.key_ranges() * p.batch * p.num_kv_heads;
  const double flops = kElementFlops * static_cast<double>(rows * p.v_head_dim) + static_cast<double>(items) * kItemFlops +
                       p.pairs() * 2.0 * static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim);
  if (items == 0 && job.wants(gradients.dq) && !gradients.accumulate) zero_all(gradients.dq);  // no keys
  parallel_for_flops(context, items, flops, [&job, heads = p.batch * p.num_kv_heads](Index item, int worker) {
    const Index range = kRoundedAtEnd<T> ? item % job.key_ranges() : item / heads;
    const Index head = kRoundedAtEnd<T> ? item / job.key_ranges() : item % heads;
    job.run(item, range, head / job.p.num_kv_heads, head % job.p.num_kv_heads, worker);
  });
  capture.run_backward({lse, dout}, context);
  if (gradients.dsinks.is_null()) return;
  if (items == 0) job.prepare_without_keys();
  add_sink_gradient(p, job.delta, job.lse2_high, job.lse2_low, gradients.dsinks, gradients.accumulate);
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

}  // namespace v0
}  // namespace qkv
