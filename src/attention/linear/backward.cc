// Backward linear attention. The states before all segments are computed first: a sum of each segment's own and a pass
// over these, or with the delta rule one segment after the other. Then each head's segments run from last to first, and
// the gradient of the state is carried along; or, if heads are few, all run at once after a sum of each segment's part
// of that gradient. Not causal: dq comes from the one state, dk and dv from its one gradient. Gradients of decay and
// beta are computed per token and then summed to their own shape in one order.
#include <algorithm>

#include "attention/linear/job.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"

namespace qkv::inline v0 {
namespace {

/// The cost of a second sum of the state's gradient, as a share of the whole.
constexpr double kBackwardSecondSum = 0.15;

template <class T> struct BackwardJob : LinearJob<T> {
  using LinearJob<T>::p;
  View<const T, 4> dout;
  const LinearAttentionGradients<T>& gradients;
  T *dslots = nullptr, *dtotals = nullptr;
  T *decay_rows = nullptr, *beta_rows = nullptr;  // [heads][T], decays per channel [heads][T][F]; null: not wanted

  explicit BackwardJob(const LinearAttentionGradients<T>& wanted) : gradients(wanted) {}

  T* dslot(Index number) const { return dslots + number * p.slot_count(); }
  T* dtotal(Index item) const { return dtotals + item * p.slot_count(); }

  LinearAttentionGradient<T> gradient(const Tokens& tokens, int worker) const {
    const Index item = tokens.item, b = item / p.num_kv_heads, g = item % p.num_kv_heads, h = g * p.group_size();
    LinearAttentionGradient<T> t{};
    t.forward = this->part(tokens);
    t.forward.local = this->worker_slot(worker, 2);
    t.dout = head_rows(dout, b, h);
    t.dq = head_rows(gradients.dq, b, p.q_head(g));
    t.dk = head_rows(gradients.dk, b, p.k_head(g));
    t.dv = head_rows(gradients.dv, b, g);
    const View<T, 4>& channels = gradients.dlog_decay_channels;
    const Index width = channels.is_null() ? 1 : p.features.count;
    t.dlog_decay =
        decay_rows == nullptr ? head_rows(channels, b, g) : HeadRows<T>{decay_rows + item * p.kv_len * width, 0, width};
    if (beta_rows != nullptr) t.dbeta = {beta_rows + item * p.kv_len, 0, 1};
    t.accumulate_qk = gradients.accumulate || g % p.value_group > 0;
    t.accumulate_v = gradients.accumulate;
    return t;
  }

  void load_dfinal(Index item, T* state) const {
    LinearProblem<T> other = p;
    other.initial = gradients.dfinal;
    other.load_initial(item, state);
  }
  void finish(Index item, const T* dstate) const { p.store(dstate, item, gradients.accumulate, gradients.dinitial); }

  /// The delta rule, a decay per channel: slots of one head, each the state before its segment.
  void states_in_order(Index item, int worker) const {
    T *state = this->worker_slot(worker, 0), *local = this->worker_slot(worker, 1);
    const Index segments = p.segments(p.kv_len);
    p.load_initial(item, state);
    for (Index segment = 0; segment < segments; ++segment) {
      T* slot = this->slot(item * segments + segment);
      std::copy_n(state, p.slot_count(), slot);
      if (segment + 1 == segments) break;
      LinearAttentionSegment<T> s = p.part(p.tokens(item * segments + segment, p.kv_len));
      s.q = {};
      s.base = slot;
      s.local = local;
      p.kernels->forward(s, this->kernel_scratch(worker));
      p.pass(local, state);
    }
  }

  /// Computes only what a segment's queries add to the gradient of the state.
  void sum_dsegment(Index number, Index length, int worker) const {
    LinearAttentionGradient<T> t = gradient(p.tokens(number, length), worker);
    t.dq = t.dk = t.dv = t.dlog_decay = t.dbeta = {};
    t.dlocal = dslot(number);
    p.kernels->backward(t, this->kernel_scratch(worker));
  }

  /// Runs all segments of one head, from last to first.
  void run_head(Index item, int worker) const {
    const Index segments = p.segments(p.kv_len);
    T *dbase = this->worker_slot(worker, 0), *dlocal = this->worker_slot(worker, 1);
    load_dfinal(item, dbase);
    for (Index segment = segments - 1; segment >= 0; --segment) {
      LinearAttentionGradient<T> t = gradient(p.tokens(item * segments + segment, p.kv_len), worker);
      t.forward.base = this->slot(item * segments + segment);
      t.dbase = dbase;
      t.dlocal = dlocal;
      p.kernels->backward(t, this->kernel_scratch(worker));
      p.pass(dlocal, dbase);
    }
    finish(item, dbase);
  }

  void run_segment(Index number, int worker) const {
    LinearAttentionGradient<T> t = gradient(p.tokens(number, p.kv_len), worker);
    t.forward.base = this->slot(number);
    t.dbase = dslot(number);
    t.dlocal = this->worker_slot(worker, 0);
    p.kernels->backward(t, this->kernel_scratch(worker));
  }

  /// Runs body(number) for segment `number % segments` of every head of value group `number / segments`, in order: they
  /// add to the same dq and dk.
  template <class Body> void for_value_group(Index number, Index segments, const Body& body) const {
    const Index first = number / segments * p.value_group, segment = number % segments;
    for (Index r = 0; r < p.value_group; ++r) body((first + r) * segments + segment);
  }

  void queries(Index number, int worker) const {
    const Tokens tokens = p.tokens(number, p.q_len);
    LinearAttentionGradient<T> t = gradient(tokens, worker);
    t.forward.base = this->total(tokens.item);
    p.kernels->backward_queries(t, this->kernel_scratch(worker));
  }
  void keys(Index number, int worker) const {
    const Tokens tokens = p.tokens(number, p.kv_len);
    LinearAttentionGradient<T> t = gradient(tokens, worker);
    t.dbase = dtotal(tokens.item);
    p.kernels->backward_keys(t, this->kernel_scratch(worker));
  }

  void run(Context& context) {
    const Index heads = p.kv_heads(), segments = p.segments(p.kv_len), q_segments = p.segments(p.q_len);
    const double flops = p.flops(std::max(p.q_len, p.kv_len));
    const bool at_once =
        p.causal && !p.in_order() && segments_at_once(p.value_groups(), segments, p.threads, kBackwardSecondSum);
    const Index num_dslots = at_once ? heads * segments : p.causal ? 0 : heads * q_segments;
    const Index num_slots = heads * segments;
    const auto carve_token_rows = [&](std::byte* base) {
      Carver carver(base);
      if (!gradients.dlog_decay.is_null()) decay_rows = carver.array<T>(heads * p.kv_len);
      if (sum_channels()) decay_rows = carver.array<T>(heads * p.kv_len * p.features.count);
      if (!gradients.dbeta.is_null()) beta_rows = carver.array<T>(heads * p.kv_len);
      return carver.used();
    };
    const ScratchLease token_rows = borrow_scratch(context, carve_token_rows(nullptr));
    carve_token_rows(token_rows.data());
    const ScratchLease lease = this->borrow(context, num_slots + num_dslots + 2 * heads, 0,
        std::max(p.kernels->backward_scratch_bytes(p.sizes()), p.kernels->forward_scratch_bytes(p.sizes())));
    dslots = this->slot(num_slots);
    this->totals = dslots + num_dslots * p.slot_count();
    dtotals = this->total(heads);
    const auto region = [&](Index items, double share, const auto& body) {
      parallel_for_flops(context, items, share * flops + static_cast<double>(items) * kItemFlops, body);
    };
    if (p.in_order()) {
      region(heads, 0.6, [&](Index item, int worker) { states_in_order(item, worker); });
    } else {
      region(num_slots, 0.3, [&](Index number, int worker) { this->sum_segment(number, worker); });
    }
    if (p.causal) {
      run_causal(region, at_once);
    } else {
      region(num_dslots, 0.3, [&](Index number, int worker) { sum_dsegment(number, p.q_len, worker); });
      for (Index item = 0; item < heads; ++item) {
        this->add_segments(item);
        load_dfinal(item, dtotal(item));
        for (Index s = 0; s < q_segments; ++s)
          pass_segment(dslot(item * q_segments + s), p.state_count(), dtotal(item));
        finish(item, dtotal(item));
      }
      const auto groups = [&](Index count, const auto& body) {
        region(p.value_groups() * count, 0.7, [&, count](Index number, int worker) {
          for_value_group(number, count, [&](Index each) { body(each, worker); });
        });
      };
      if (!gradients.dq.is_null()) groups(q_segments, [&](Index number, int worker) { queries(number, worker); });
      if (!gradients.dk.is_null() || !gradients.dv.is_null()) {
        groups(segments, [&](Index number, int worker) { keys(number, worker); });
      }
    }
    const auto as_channels = [](const View<T, 3>& view) {
      return view.is_null() ? View<T, 4>()
                            : View<T, 4>(view.data(), {view.size(0), view.size(1), view.size(2), 1},
                                  {view.stride(0), view.stride(1), view.stride(2), 1});
    };
    add_tokens(as_channels(gradients.dlog_decay), decay_rows);
    add_tokens(as_channels(gradients.dbeta), beta_rows);
    if (sum_channels()) add_tokens(gradients.dlog_decay_channels, decay_rows);
  }

  template <class Region> void run_causal(const Region& region, bool at_once) {
    const Index heads = p.kv_heads(), segments = p.segments(p.kv_len);
    if (!p.in_order()) {
      for (Index item = 0; item < heads; ++item) this->pass_states(item, 0);
    }
    if (!at_once) {
      region(p.value_groups(), 3,
          [&](Index group, int worker) { for_value_group(group, 1, [&](Index item) { run_head(item, worker); }); });
      return;
    }
    region(heads * segments, 0.5, [&](Index number, int worker) { sum_dsegment(number, p.kv_len, worker); });
    for (Index item = 0; item < heads; ++item) {
      T *dstate = this->worker_slot(0, 0), *next = this->worker_slot(0, 1);
      load_dfinal(item, dstate);
      for (Index segment = segments - 1; segment >= 0; --segment) {
        this->step(dslot(item * segments + segment), dstate, next);
        std::swap(dstate, next);
      }
      finish(item, dstate);
    }
    region(p.value_groups() * segments, 3, [&](Index number, int worker) {
      for_value_group(number, segments, [&](Index each) { run_segment(each, worker); });
    });
  }

  /// Whether gradients of decays per channel are computed per token first: they repeat, or are added to.
  bool sum_channels() const {
    const View<T, 4>& to = gradients.dlog_decay_channels;
    if (to.is_null()) return false;
    return gradients.accumulate || to.size(0) != p.batch || to.size(1) != p.num_kv_heads || to.size(2) != p.kv_len;
  }

  /// to (+)= rows [heads][T][channels of `to`], summed over the axes on which `to` repeats, in one order; over tokens
  /// each kSumTokens into the first of their rows.
  void add_tokens(const View<T, 4>& to, T* rows) const {
    if (to.is_null()) return;
    const Index width = to.size(3);
    const auto at = [&](Index b, Index g, Index i) {
      return &to(to.size(0) > 1 ? b : 0, to.size(1) > 1 ? g : 0, to.size(2) > 1 ? i : 0, 0);
    };
    if (!gradients.accumulate) {
      for (Index b = 0; b < to.size(0); ++b) {
        for (Index g = 0; g < to.size(1); ++g) {
          for (Index i = 0; i < to.size(2); ++i) std::fill_n(&to(b, g, i, 0), width, T{});
        }
      }
    }
    for (Index b = 0; b < p.batch; ++b) {
      for (Index g = 0; g < p.num_kv_heads; ++g) {
        const Index step = to.size(2) > 1 ? 1 : kSumTokens;
        for (Index i = 0; i < p.kv_len; i += step) {
          const Index count = std::min(step, p.kv_len - i) * width;
          for (Index e = width; e < count; ++e) rows[e % width] += rows[e];
          T* const sum = at(b, g, i);
          for (Index f = 0; f < width; ++f) sum[f] += rows[f];
          rows += count;
        }
      }
    }
  }
};

template <class T> void check_gradients(const char* function, const LinearProblem<T>& p,
    const LinearAttentionGradients<T>& g, const View<const T, 4>& out, const View<const T, 3>& normalizer,
    const View<const T, 4>& dout) {
  check_sizes(function, "dout", dout, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  if (p.normalized) {
    check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
    check<ShapeError>(normalizer.sizes() == typename View<T, 3>::Sizes{p.batch, p.num_heads, p.q_len}, function,
        "normalizer must be [B, H, Tq], as forward returned it: got ", normalizer, " for dout ", dout);
  }
  if (!g.dq.is_null()) check_sizes(function, "dq", g.dq, p.batch, p.q.size(1), p.q_len, p.head_dim);
  if (!g.dk.is_null()) check_sizes(function, "dk", g.dk, p.batch, p.k.size(1), p.kv_len, p.head_dim);
  if (!g.dv.is_null()) check_sizes(function, "dv", g.dv, p.batch, p.num_kv_heads, p.kv_len, p.v_head_dim);
  check<ShapeError>(g.dlog_decay.is_null() || g.dlog_decay.sizes() == p.log_decay.sizes(), function,
      "dlog_decay must have the sizes of log_decay: got ", g.dlog_decay, " for ", p.log_decay);
  check<ShapeError>(g.dlog_decay_channels.is_null() || g.dlog_decay_channels.sizes() == p.channels.sizes(), function,
      "dlog_decay_channels must have the sizes of log_decay_channels: got ", g.dlog_decay_channels, " for ",
      p.channels);
  if (!g.dlog_decay_channels.is_null()) check_last_stride(function, "dlog_decay_channels", g.dlog_decay_channels);
  check<ShapeError>(g.dbeta.is_null() || g.dbeta.sizes() == p.beta.sizes(), function,
      "dbeta must have the sizes of beta: got ", g.dbeta, " for ", p.beta);
  p.check_state(function, "dinitial", g.dinitial);
  p.check_state(function, "dfinal", g.dfinal);
  const NamedBox outputs[] = {{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dlog_decay", g.dlog_decay},
      {"dlog_decay_channels", g.dlog_decay_channels}, {"dbeta", g.dbeta}, {"dinitial.kv", g.dinitial.kv},
      {"dinitial.z", g.dinitial.z}};
  const NamedBox inputs[] = {{"q", p.q}, {"k", p.k}, {"v", p.v}, {"out", out}, {"normalizer", normalizer},
      {"dout", dout}, {"log_decay", p.log_decay}, {"log_decay_channels", p.channels}, {"beta", p.beta},
      {"features", p.feature_rows}, {"initial.kv", p.initial.kv}, {"initial.z", p.initial.z},
      {"dfinal.kv", g.dfinal.kv}, {"dfinal.z", g.dfinal.z}};
  check_outputs(function, outputs, inputs);
}

template <class T> void backward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
    const View<const T, 4>& out, const View<const T, 3>& normalizer, const View<const T, 4>& dout,
    const LinearAttentionGradients<T>& gradients, const LinearAttentionOptions<T>& options, Context& context) {
  constexpr const char* function = "linear_attention_backward";
  BackwardJob<T> job(gradients);
  job.p = make_linear_problem(function, q, k, v, options, context);
  check_gradients(function, job.p, gradients, out, normalizer, dout);
  if (job.p.normalized) {  // kernels only read them
    job.out = {const_cast<T*>(out.data()), out.sizes(), out.strides()};
    job.normalizer = {const_cast<T*>(normalizer.data()), normalizer.sizes(), normalizer.strides()};
  }
  job.dout = dout;
  job.run(context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                              \
  void linear_attention_backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out, \
      View<const T, 3> normalizer, View<const T, 4> dout, const LinearAttentionGradients<T>& gradients,            \
      const LinearAttentionOptions<T>& options, Context& context) {                                                \
    backward<T>(q, k, v, out, normalizer, dout, gradients, options, context);                                      \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
