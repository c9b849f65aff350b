// Forward attention and the weights: one work item per (batch, head, query tile), longest first, one region.
#include "attention/decode.h"
#include "attention/forward_job.h"
#include "attention/problem.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"

namespace qkv {
inline namespace v0 {

template <class T>
void run_forward(ForwardJob<T> job, Context& context) {
  const Problem<T>& p = job.p;
  const Index items = p.batch * p.num_heads * p.query_tiles();
  if (items == 0) return;
  job.kernel_bytes = p.forward_scratch_bytes();
  job.scratch_bytes = job.kernel_bytes + job.kept_bytes();
  job.capture_bytes = job.capture == nullptr ? 0 : job.capture->worker_bytes();
  const std::size_t shared_bytes = job.capture == nullptr ? 0 : job.capture->shared_bytes();
  const std::size_t workers_bytes = (job.scratch_bytes + job.capture_bytes) * static_cast<std::size_t>(context.threads());
  const ScratchLease scratch = borrow_scratch(context, workers_bytes + shared_bytes);
  job.scratch = scratch.data();
  if (job.capture != nullptr) job.capture->begin(scratch.data() + workers_bytes);
  const double flops =
      static_cast<double>(items) * kItemFlops + p.pairs() * 2.0 * static_cast<double>(p.head_dim + p.v_head_dim);
  parallel_for_flops(context, items, flops, [&job](Index item, int worker) {
    const Index tiles = job.p.query_tiles(), head = item / tiles;
    const Index t = tiles - 1 - item % tiles;  // late queries first: under causal they cost most
    job.run(head / job.p.num_heads, head % job.p.num_heads, t, worker);
  });
}

#define QKV_INSTANTIATE(T) template void run_forward(ForwardJob<T>, Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

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
  const bool wants_weights = weights != nullptr && p.kv_len > 0, applied = kind == WeightsKind::kApplied;
  const View<Accumulator<T>, 4> wanted = wants_weights ? *weights : View<Accumulator<T>, 4>{};
  ForwardJob<T> job{p, out, lse, wanted, applied};
  job.capture = capture.if_wanted();
  if (decode_suits(p)) {
    decode_forward(p, out, lse, context);  // the same bits as without weights
    job.out = {};
    job.lse = {};
    if (!wants_weights && !capture.wanted()) return;
  }
  run_forward(job, context);
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
  ForwardJob<T> job{p, {}, {}, result, kind == WeightsKind::kApplied};
  job.capture = capture.if_wanted();
  if (p.kv_len > 0) run_forward(job, context);
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
