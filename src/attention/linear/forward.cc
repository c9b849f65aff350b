// Forward linear attention. Causal: a work item is one (batch, key/value head), its segments one after the other; or,
// if heads are few, one segment, after a region that sums each segment's own state and a pass over these sums. Not
// causal: segments of keys are summed, added in order, and then read by segments of queries. All cases are
// bit-identical: a state is always decay * (the state before the segment) + (the segment's own). Under the delta rule,
// and with a decay per channel, each segment needs the one before, so that few heads are split by columns of v instead.
// One token is a step of its own.
#include <algorithm>

#include "attention/linear/job.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"

namespace qkv::inline v0 {
namespace {

/// The cost of the second sum of states: half of all work on states, compared with states and squares together.
constexpr double kForwardSecondSum = 0.3;
/// The fewest columns of v that justify reading all keys again: a vector of the widest kind.
constexpr Index kLeastColumns = 16;

template <class T> struct ForwardJob : LinearJob<T> {
  using LinearJob<T>::p;
  LinearState<T> final;

  void finish(Index item, const T* state) const { p.store(state, item, false, final); }

  /// Runs all segments of one head, one after the other.
  void run_head(Index item, int worker) const {
    T *base = this->worker_slot(worker, 0), *local = this->worker_slot(worker, 1);
    p.load_initial(item, base);
    for (Index segment = 0; segment < p.segments(p.kv_len); ++segment) {
      LinearAttentionSegment<T> s = this->part(p.tokens(item * p.segments(p.kv_len) + segment, p.kv_len));
      s.base = base;
      s.local = local;
      p.kernels->forward(s, this->kernel_scratch(worker));
      p.pass(local, base);
    }
    finish(item, base);
  }

  /// A state [F, Dv] that lies as [Dv, F] (Mamba-2's caches), both in whole vectors of any kind.
  template <class E> bool turned(const View<E, 4>& kv) const {
    constexpr Index whole = 64 / sizeof(T);
    return !kv.is_null() && kv.stride(2) == 1 && p.features.count % whole == 0 && p.v_head_dim % whole == 0;
  }

  /// One token of one head. A state whose rows do not lie in whole vectors goes through a slot.
  void run_step(Index item, int worker) const {
    const Index b = item / p.num_kv_heads, g = item % p.num_kv_heads;
    LinearAttentionStep<T> s{this->part({item, 0, 1}), this->worker_slot(worker, 0), this->worker_slot(worker, 0),
        p.v_head_dim, p.v_head_dim};
    const auto direct = [&](const auto& view) { return !view.is_null() && (view.stride(3) == 1 || view.size(3) == 1); };
    if (direct(p.initial.kv)) {
      s.before = &p.initial.kv(b, g, 0, 0);
      s.before_row = p.initial.kv.stride(2);
    } else if (turned(p.initial.kv)) {
      p.kernels->turn(&p.initial.kv(b, g, 0, 0), p.initial.kv.stride(3), p.v_head_dim, p.features.count,
          this->worker_slot(worker, 0), p.v_head_dim);
    } else {
      p.load_initial(item, this->worker_slot(worker, 0));
    }
    if (direct(final.kv)) {
      s.after = &final.kv(b, g, 0, 0);
      s.after_row = final.kv.stride(2);
    }
    p.kernels->step(s, this->kernel_scratch(worker));
    if (final.kv.is_null() || direct(final.kv)) return;
    if (turned(final.kv)) {
      p.kernels->turn(s.after, p.v_head_dim, p.features.count, p.v_head_dim, &final.kv(b, g, 0, 0), final.kv.stride(3));
    } else {
      finish(item, s.after);
    }
  }

  /// The same call for columns [begin, end) of v, out and states: each column depends on the keys and on itself alone.
  ForwardJob columns(Index begin, Index end) const {
    ForwardJob part = *this;
    part.p.v_head_dim = end - begin;
    part.p.v = p.v.sliced(3, begin, end);
    part.out = this->out.sliced(3, begin, end);
    if (!p.initial.kv.is_null()) part.p.initial.kv = p.initial.kv.sliced(3, begin, end);
    if (!final.kv.is_null()) part.final.kv = final.kv.sliced(3, begin, end);
    return part;
  }

  /// The number of parts that columns are split into, so that few heads leave no thread idle.
  Index column_parts() const {
    const Index heads = p.kv_heads();
    if (!p.in_order() || heads == 0 || heads >= p.threads) return 1;
    return std::clamp<Index>((p.threads + heads - 1) / heads, 1, std::max<Index>(1, p.v_head_dim / kLeastColumns));
  }

  void out_of_segment(Index number, int worker) const {
    LinearAttentionSegment<T> s = this->part(p.tokens(number, p.kv_len));
    s.base = this->slot(number);
    s.local = this->worker_slot(worker, 0);
    p.kernels->forward(s, this->kernel_scratch(worker));
  }

  /// Not causal: computes the queries of one segment from the state of all keys.
  void read(Index number, int worker) const {
    const Tokens tokens = p.tokens(number, p.q_len);
    LinearAttentionSegment<T> s = this->part(tokens);
    s.base = this->total(tokens.item);
    p.kernels->read_state(s, this->kernel_scratch(worker));
  }

  void run(Context& context) {
    const Index heads = p.kv_heads(), segments = p.segments(p.kv_len);
    const auto region = [&](Index items, double flops, const auto& body) {
      parallel_for_flops(context, items, flops + static_cast<double>(items) * kItemFlops, body);
    };
    const double flops = p.flops(std::max(p.q_len, p.kv_len));
    const auto sums = [&](Index number, int worker) { this->sum_segment(number, worker); };
    if (p.causal && p.kv_len == 1 && !p.normalized && p.group_size() > 0) {
      const std::size_t rows = line_bytes<T>(p.features.count * (3 + p.group_size()));
      const ScratchLease lease = this->borrow(context, 0, 0, rows);
      const double states = static_cast<double>(heads * p.features.count * p.v_head_dim);
      region(heads, kStateFlops * states, [&](Index item, int worker) { run_step(item, worker); });
      return;
    }
    if (!p.causal) {
      const ScratchLease lease =
          this->borrow(context, heads * segments, heads, p.kernels->forward_scratch_bytes(p.sizes()));
      region(heads * segments, flops / 2, sums);
      for (Index item = 0; item < heads; ++item) {
        this->add_segments(item);
        finish(item, this->total(item));
      }
      region(heads * p.segments(p.q_len), flops / 2, [&](Index number, int worker) { read(number, worker); });
      return;
    }
    const bool at_once = !p.in_order() && segments_at_once(heads, segments, p.threads, kForwardSecondSum);
    const ScratchLease lease =
        this->borrow(context, at_once ? heads * segments : 0, 0, p.kernels->forward_scratch_bytes(p.sizes()));
    if (!at_once) {
      const Index parts = column_parts();
      region(heads * parts, flops, [&](Index item, int worker) {
        const Index part = item % parts;
        columns(p.v_head_dim * part / parts, p.v_head_dim * (part + 1) / parts).run_head(item / parts, worker);
      });
      return;
    }
    region(heads * segments, flops / 2, sums);
    for (Index item = 0; item < heads; ++item) finish(item, this->pass_states(item, 0));
    region(heads * segments, flops, [&](Index number, int worker) { out_of_segment(number, worker); });
  }
};

template <class T> void forward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
    const View<T, 4>& out, const View<T, 3>& normalizer, const LinearAttentionOptions<T>& options,
    const LinearState<T>& final, Context& context) {
  constexpr const char* function = "linear_attention_forward";
  ForwardJob<T> job;
  LinearProblem<T>& p = job.p;
  p = make_linear_problem(function, q, k, v, options, context);
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<OptionError>(p.normalized || normalizer.is_null(), function, "normalizer belongs to the normalised form");
  check<ShapeError>(
      normalizer.is_null() || normalizer.sizes() == typename View<T, 3>::Sizes{p.batch, p.num_heads, p.q_len}, function,
      "normalizer must be [B, H, Tq] or null: got ", normalizer, " for out ", out);
  p.check_state(function, "final", final);
  // A state that is updated in place is read and written by one work item.
  const auto same = [](const auto& a, const auto& b) {
    return a.data() == b.data() && a.sizes() == b.sizes() && a.strides() == b.strides();
  };
  LinearState<const T> initial = p.initial;
  if (same(initial.kv, View<const T, 4>(final.kv))) initial.kv = {};
  if (same(initial.z, View<const T, 3>(final.z))) initial.z = {};
  const NamedBox outputs[] = {{"out", out}, {"normalizer", normalizer}, {"final.kv", final.kv}, {"final.z", final.z}};
  const NamedBox inputs[] = {{"q", q}, {"k", k}, {"v", v}, {"log_decay", p.log_decay},
      {"log_decay_channels", p.channels}, {"beta", p.beta}, {"features", p.feature_rows}, {"initial.kv", initial.kv},
      {"initial.z", initial.z}};
  check_outputs(function, outputs, inputs);
  job.out = out;
  job.normalizer = normalizer;
  job.final = final;
  job.run(context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                       \
  void linear_attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out, \
      View<T, 3> normalizer, const LinearAttentionOptions<T>& options, const LinearState<T>& final,         \
      Context& context) {                                                                                   \
    forward<T>(q, k, v, out, normalizer, options, final, context);                                          \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
