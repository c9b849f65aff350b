// Backward attention of a ragged batch: the work items of every sequence (backward_job.h) in one region, sequences with many
// keys first. As for one sequence, key ranges are outermost; for 16-bit types heads are, so that few are in flight.
#include <algorithm>
#include <new>
#include <utility>

#include "attention/backward_job.h"
#include "attention/plan.h"
#include "attention/shared_gradients.h"
#include "attention/sink_gradient.h"
#include "attention/varlen.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"

namespace qkv {
inline namespace v0 {
namespace {

/// One sequence that has keys, in the order in which work is dealt out.
struct Place {
  Index sequence;
  Index first_item;  // where heads are outermost
  Index first_turn;  // of its query tiles
};

template <class T>
Problem<T> longest_sequence(const RaggedProblem<T>& r) {
  Problem<T> p = r.shared;
  p.batch = r.batch;
  p.q_len = r.longest_q;
  p.kv_len = r.longest_kv;
  return p;
}

template <class T>
struct RaggedBackward {
  using Sum = Accumulator<T>;
  const RaggedProblem<T>& r;
  View<const T, 3> out;
  View<const Sum, 2> lse;
  View<const T, 3> dout;
  const RaggedGradients<T>& gradients;
  Problem<T> longest;  // a sequence as long as the longest queries and the most keys: what scratch must hold
  GradientSums<T> sums;
  BiasGradient<T> bias;
  std::span<Place> places{};       // those with keys; the rest of the memory is unused
  std::span<Index> range_first{};  // [ranges + 1]: items of smaller key ranges, where ranges are outermost
  Index rows, items = 0, num_tile_turns = 0;
  std::size_t kernel_bytes, bias_bytes, position_bytes;
  // Shared scratch: delta, lse2 in two parts, each [H, total_q] sequence by sequence; tile turns; bias turns.
  Sum* delta = nullptr;
  Turn *tile_turns = nullptr, *bias_turns = nullptr;
  std::byte* workers = nullptr;

  RaggedBackward(const RaggedProblem<T>& ragged, const View<const T, 3>& its_out, const View<const Sum, 2>& its_lse,
                 const View<const T, 3>& its_dout, const RaggedGradients<T>& its_gradients, const Context& context)
      : r(ragged),
        out(its_out),
        lse(its_lse),
        dout(its_dout),
        gradients(its_gradients),
        longest(longest_sequence(ragged)),
        sums(longest, longest.key_ranges(), context.threads()),
        bias(gradients.dbias, longest),
        rows(r.q.size(0) * r.shared.num_heads),
        kernel_bytes(lines(std::max(longest.kernels->backward_scratch_bytes(longest.head_dim, longest.v_head_dim),
                                    longest.kernels->forward_scratch_bytes(longest.head_dim, longest.v_head_dim)))),
        bias_bytes(bytes_of_bias(bias.over_queries)),
        position_bytes(PositionGradient<T>{gradients.dposition_bias, &longest}.worker_bytes()) {
    for (Index b = 0; b < r.batch; ++b) num_tile_turns += longest.num_heads * r.sequence(b).query_tiles();
  }

  /// `sums_bias`: a worker sums dbias over the queries of its key range.
  std::size_t bytes_of_bias(bool sums_bias) const {
    return sums_bias ? lines(static_cast<std::size_t>(longest.backward_keys) * sizeof(Sum)) : 0;
  }
  std::size_t worker_bytes() const { return kernel_bytes + bias_bytes + sums.worker_bytes() + position_bytes; }

  Index num_ranges() const { return longest.key_ranges(); }
  Index num_bias_turns() const { return longest.query_tiles() + 1; }
  Index num_turns() const { return num_tile_turns + num_bias_turns() + sums.num_turns(); }
  std::size_t place_bytes() const { return lines(static_cast<std::size_t>(r.batch) * sizeof(Place)); }
  std::size_t range_bytes() const { return lines(static_cast<std::size_t>(num_ranges() + 1) * sizeof(Index)); }
  std::size_t row_bytes() const { return lines(static_cast<std::size_t>(3 * rows) * sizeof(Sum)); }
  std::size_t turn_bytes() const { return lines(static_cast<std::size_t>(num_turns()) * sizeof(Turn)); }
  std::size_t shared_bytes() const { return place_bytes() + range_bytes() + row_bytes() + turn_bytes() + sums.shared_bytes(); }

  /// Puts the sequences that have keys in order and numbers their items.
  void deal_out() {
    std::size_t live = 0;
    for (Index b = 0; b < r.batch; ++b) {
      if (r.kv_len(b) > 0) places[live++].sequence = b;
    }
    places = places.first(live);
    std::sort(places.begin(), places.end(), [this](const Place& x, const Place& y) {
      const Index x_keys = r.kv_len(x.sequence), y_keys = r.kv_len(y.sequence);
      return x_keys != y_keys ? x_keys > y_keys : x.sequence < y.sequence;
    });
    std::ranges::fill(range_first, 0);
    Index turns = 0;
    for (Place& place : places) {
      const Problem<T> p = r.sequence(place.sequence);
      place.first_item = items;
      place.first_turn = turns;
      items += p.num_kv_heads * p.key_ranges();
      turns += p.num_heads * p.query_tiles();
      for (Index range = 0; range < p.key_ranges(); ++range) range_first[static_cast<std::size_t>(range) + 1] += p.num_kv_heads;
    }
    for (std::size_t range = 1; range < range_first.size(); ++range) range_first[range] += range_first[range - 1];
  }

  /// dq of sequences that have no keys, of which there are no items.
  void zero_without_keys() const {
    if (gradients.dq.data() == nullptr || gradients.accumulate) return;
    for (Index b = 0; b < r.batch; ++b) {
      if (r.kv_len(b) > 0) continue;
      const View<T, 4> dq = r.queries(gradients.dq, b);
      for (Index h = 0; h < dq.size(1); ++h) zero_rows(dq, b, h, 0, dq.size(2));
    }
  }

  void run(Index item, int worker) const {
    if constexpr (kRoundedAtEnd<T>) {
      const Place& place = place_of<Place>(places, item);
      const Index ranges = r.sequence(place.sequence).key_ranges(), own = item - place.first_item;
      run(item, place, own / ranges, own % ranges, worker);
    } else {
      const auto after = std::upper_bound(range_first.begin(), range_first.end(), item);
      const Index range = after - range_first.begin() - 1, own = item - *(after - 1), heads = longest.num_kv_heads;
      run(item, places[static_cast<std::size_t>(own / heads)], own % heads, range, worker);
    }
  }

  /// One key range of kv head g.
  void run(Index item, const Place& place, Index g, Index range, int worker) const {
    const Index b = place.sequence;
    const Problem<T> p = r.sequence(b);
    AttentionGradients<T> its_gradients;
    its_gradients.dq = r.queries(gradients.dq, b);
    its_gradients.dk = r.keys(gradients.dk, b);
    its_gradients.dv = r.keys(gradients.dv, b);
    its_gradients.dlse = r.query_numbers(gradients.dlse, b);
    its_gradients.accumulate = gradients.accumulate;
    BackwardJob<T> job{p, r.queries(out, b), r.query_numbers(lse, b), r.queries(dout, b), its_gradients, bias, sums};
    job.delta = delta;
    job.lse2_high = delta + rows;
    job.lse2_low = delta + 2 * rows;
    job.tile_turns = tile_turns;
    job.bias_turns = bias_turns;
    job.longest_tiles = longest.query_tiles();
    job.position = {gradients.dposition_bias, &p};
    job.row_offset = p.num_heads * (r.q_begin(b) - b * p.q_len);
    job.turn_offset = place.first_turn - b * p.num_heads * p.query_tiles();
    job.head_offset = (&place - places.data() - b) * p.num_kv_heads;
    job.scratch = workers + static_cast<std::size_t>(worker) * worker_bytes();
    job.kernel_bytes = kernel_bytes;
    job.bias_bytes = bias_bytes;
    job.worker_bytes = worker_bytes();
    job.run(item, range, b, g, 0);
  }

  /// After all items: every sequence's part, in their order.
  void add_dsinks() const {
    if (gradients.dsinks.is_null()) return;
    for (Index b = 0; b < r.batch; ++b) {
      Problem<T> p = r.sequence(b);
      p.batch = 1;
      const AttentionGradients<T> its_gradients{.dlse = r.query_numbers(gradients.dlse, b)};
      BackwardJob<T> job{p, {}, r.query_numbers(lse, b), {}, its_gradients, bias, sums};
      job.delta = delta + p.num_heads * r.q_begin(b);
      job.lse2_high = job.delta + rows;
      job.lse2_low = job.delta + 2 * rows;
      if (p.kv_len == 0) job.prepare_without_keys();
      add_sink_gradient(p, job.delta, job.lse2_high, job.lse2_low, gradients.dsinks, true);
    }
  }
};

template <class T>
void check_gradients(const char* function, const RaggedProblem<T>& r, const RaggedGradients<T>& g, const View<const T, 3>& out,
                     const View<const Accumulator<T>, 2>& lse, const View<const T, 3>& dout) {
  const Problem<T>& p = r.shared;
  const Index total_q = r.q.size(0), total_k = r.k.size(0);
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
      {"q", r.q},   {"k", r.k},     {"v", r.v},       {"bias", p.bias},   {"out", out},
      {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, outputs, inputs);
}

template <class T>
void backward(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v, const View<const T, 3>& out,
              const View<const Accumulator<T>, 2>& lse, const View<const T, 3>& dout, const RaggedGradients<T>& gradients,
              const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  using Sum = Accumulator<T>;
  constexpr const char* function = "attention_varlen_backward";
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context);
  check_gradients(function, r, gradients, out, lse, dout);
  if (!gradients.accumulate) {
    zero_all(gradients.dbias);
    zero_all(gradients.dsinks);
    zero_all(gradients.dposition_bias);
  }
  if (r.batch == 0) return;
  RaggedBackward<T> job(r, out, lse, dout, gradients, context);
  job.zero_without_keys();

  const ScratchLease scratch =
      borrow_scratch(context, job.shared_bytes() + job.worker_bytes() * static_cast<std::size_t>(context.threads()));
  std::byte* next = scratch.data();
  const auto take = [&next](std::size_t bytes) { return std::exchange(next, next + bytes); };
  job.places = {reinterpret_cast<Place*>(take(job.place_bytes())), static_cast<std::size_t>(r.batch)};
  job.range_first = {reinterpret_cast<Index*>(take(job.range_bytes())), static_cast<std::size_t>(job.num_ranges() + 1)};
  job.delta = reinterpret_cast<Sum*>(take(job.row_bytes()));
  job.tile_turns = reinterpret_cast<Turn*>(take(job.turn_bytes()));
  for (Index t = 0; t < job.num_turns(); ++t) new (&job.tile_turns[t]) Turn(0);
  job.bias_turns = job.tile_turns + job.num_tile_turns;
  job.sums.place(take(job.sums.shared_bytes()), job.bias_turns + job.num_bias_turns());
  job.workers = next;
  job.deal_out();

  const double width = static_cast<double>(3 * r.shared.head_dim + 2 * r.shared.v_head_dim);
  const double flops = kElementFlops * static_cast<double>(job.rows * r.shared.v_head_dim) +
                       static_cast<double>(job.items) * kItemFlops + r.pairs * 2.0 * width;
  parallel_for_flops(context, job.items, flops, [&job](Index item, int worker) { job.run(item, worker); });
  job.add_dsinks();
}

}  // namespace

template <class T>
void plan_ragged_backward(const RaggedProblem<T>& r, const Context& context, AttentionPlan& plan) {
  if (r.batch == 0) return;
  const RaggedGradients<T> none;
  RaggedBackward<T> job(r, {}, {}, {}, none, context);
  job.bias_bytes = job.bytes_of_bias(sums_over_queries<T>(r.shared.bias, job.longest));
  plan.backward_scratch_bytes = job.worker_bytes();
  plan.backward_shared_bytes = job.shared_bytes();
}

#define QKV_DEFINE(T)                                                                                              \
  void attention_varlen_backward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<const T, 3> out, \
                                 View<const Accumulator<T>, 2> lse, View<const T, 3> dout,                         \
                                 const RaggedGradients<T>& gradients, const RaggedOffsets& offsets,                \
                                 const AttentionOptions& options, Context& context) {                              \
    backward<T>(q, k, v, out, lse, dout, gradients, offsets, options, context);                                    \
  }                                                                                                                \
  template void plan_ragged_backward(const RaggedProblem<T>&, const Context&, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
