// Backward attention. Work items are (key range, batch, kv head), key ranges outermost (heads outermost for 16-bit types, so
// that few heads are in flight, gradient_sums.h). The first range also makes delta and lse2 of each query tile. dk and dv
// belong to one item, for all query heads of its group; dq and a shared dbias are added in turn (turns.h). No atomics on data,
// no slabs, no dependence on threads.
#include <algorithm>
#include <new>

#include "attention/bias_gradient.h"
#include "attention/empty_rows.h"
#include "attention/gradient_sums.h"
#include "attention/problem.h"
#include "attention/row_lse.h"
#include "attention/turns.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/region.h"
#include "core/scratch.h"

namespace qkv {
inline namespace v0 {
namespace {

template <class T>
void zero_rows(const View<T, 4>& view, Index b, Index h, Index begin, Index count) {
  for (Index i = begin; i < begin + count; ++i) std::fill_n(&view(b, h, i, 0), view.size(3), T{});
}

/// One call, as every work item sees it.
template <class T>
struct BackwardJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<const T, 4> out;
  View<const Sum, 3> lse;
  View<const T, 4> dout;
  const AttentionGradients<T>& gradients;
  BiasGradient<T> bias;
  GradientSums<T> sums;
  // Shared scratch: delta, lse2 in two parts, each [B, H, Tq]; tile turns [B, H, query tiles]; bias turns [query tiles + 1].
  Sum *delta = nullptr, *lse2_high = nullptr, *lse2_low = nullptr;
  Turn *tile_turns = nullptr, *bias_turns = nullptr;
  std::byte* scratch = nullptr;  // workers x (kernel scratch + private dbias + private sums)
  std::size_t kernel_bytes = 0, bias_bytes = 0, worker_bytes = 0;

  Index key_ranges() const { return (p.kv_len + p.backward_keys - 1) / p.backward_keys; }
  bool wants(const View<T, 4>& view) const { return view.data() != nullptr; }
  bool sets_in_place() const { return !gradients.accumulate && !kRoundedAtEnd<T>; }
  void* kernel_scratch(int worker) const { return scratch + static_cast<std::size_t>(worker) * worker_bytes; }
  Sum* private_bias(int worker) const {
    return reinterpret_cast<Sum*>(scratch + static_cast<std::size_t>(worker) * worker_bytes + kernel_bytes);
  }
  std::byte* private_sums(int worker) const {
    return scratch + static_cast<std::size_t>(worker) * worker_bytes + kernel_bytes + bias_bytes;
  }

  /// delta and lse2 of the tile's queries: the work of the first key range, which the others wait for.
  void prepare(const BackwardTile<T>& tile, Index b, Index h, int worker) const {
    const Index first_row = (b * p.num_heads + h) * p.q_len;
    DeltaRows<T> rows{};
    rows.dout = tile.dout;
    rows.out = out.data() + b * out.stride(0) + h * out.stride(1);
    rows.dout_stride = dout.stride(2);
    rows.out_stride = out.stride(2);
    rows.v_head_dim = p.v_head_dim;
    rows.q_begin = tile.q_begin;
    rows.q_count = tile.q_count;
    rows.delta = delta + first_row;
    p.kernels->delta(rows, kernel_scratch(worker));
    split_lse(p, lse, b, h, tile.q_begin, tile.q_count, lse2_high + first_row, lse2_low + first_row, kernel_scratch(worker));
    if (gradients.dlse.data() == nullptr) return;
    for (Index i = tile.q_begin; i < tile.q_begin + tile.q_count; ++i) rows.delta[i] -= gradients.dlse(b, h, i);
  }

  BackwardTile<T> tile_of(Index b, Index h, Index k_begin, Index k_count, int worker) const {
    const Index g = h / p.group_size();
    const auto at = [b](const auto& view, Index head) {
      return view.data() == nullptr ? nullptr : view.data() + b * view.stride(0) + head * view.stride(1);
    };
    BackwardTile<T> tile{};
    tile.scores = p.scores(b, h);
    tile.v = at(p.v, g);
    tile.dout = at(dout, h);
    const Index first_row = (b * p.num_heads + h) * p.q_len;
    tile.delta = delta + first_row;
    tile.lse2_high = lse2_high + first_row;
    tile.lse2_low = lse2_low + first_row;
    tile.v_stride = p.v.stride(2);
    tile.dout_stride = dout.stride(2);
    tile.v_head_dim = p.v_head_dim;
    tile.k_begin = k_begin;
    tile.k_count = k_count;
    if constexpr (!kRoundedAtEnd<T>) {
      tile.dq = at(gradients.dq, h);
      tile.dk = at(gradients.dk, g);
      tile.dv = at(gradients.dv, g);
      tile.dq_stride = gradients.dq.stride(2);
      tile.dk_stride = gradients.dk.stride(2);
      tile.dv_stride = gradients.dv.stride(2);
    } else {
      const SumRows<T> keys = sums.keys(private_sums(worker), k_begin), values = sums.values(private_sums(worker), k_begin);
      tile.dk = wants(gradients.dk) ? keys.data : nullptr;
      tile.dv = wants(gradients.dv) ? values.data : nullptr;
      tile.dk_stride = keys.stride;
      tile.dv_stride = values.stride;
    }
    return tile;
  }

  /// One query tile against one key range, in the range's turn.
  void run_tile(BackwardTile<T>& tile, Index range, Index b, Index h, bool live, int worker) const {
    if constexpr (kRoundedAtEnd<T>) {
      const SumRows<T> rows = sums.queries(private_sums(worker), b, h, tile.q_begin);
      tile.dq = wants(gradients.dq) ? rows.data : nullptr;
      tile.dq_stride = rows.stride;
      if (tile.dq != nullptr && range == 0) sums.clear(rows, tile.q_begin, tile.q_count);
    }
    if (range == 0) prepare(tile, b, h, worker);
    tile.sets_dq = range == 0 && sets_in_place();
    if (live) {
      p.kernels->backward(tile, kernel_scratch(worker));
      tile.sets_keys = false;
    } else if (tile.sets_dq && wants(gradients.dq)) {
      zero_rows(gradients.dq, b, h, tile.q_begin, tile.q_count);
    }
    if constexpr (kRoundedAtEnd<T>) {
      if (tile.dq == nullptr || range + 1 != key_ranges()) return;
      sums.round({tile.dq, tile.dq_stride}, gradients.dq, b, h, tile.q_begin, tile.q_count, gradients.accumulate);
    }
  }

  /// dk and dv of keys that no query sees.
  void zero_keys(Index b, Index g, Index k_begin, Index k_count) const {
    if (wants(gradients.dk)) zero_rows(gradients.dk, b, g, k_begin, k_count);
    if (wants(gradients.dv)) zero_rows(gradients.dv, b, g, k_begin, k_count);
  }

  /// All query tiles of one head against one key range. `sequence` numbers (item, head of the group) for shared dbias;
  /// `first`: nothing has been added to dk and dv of the range.
  void run_head(Index range, Index b, Index h, Index sequence, bool first, int worker) const {
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    BackwardTile<T> tile = tile_of(b, h, k_begin, k_count, worker);
    tile.sets_keys = first && sets_in_place();
    Sum* bias_sums = private_bias(worker);
    if (bias.wanted()) {
      tile.dbias_row_stride = bias.over_queries ? 0 : bias.row_stride;
      tile.dbias_column_stride = bias.over_queries && bias.column_stride != 0 ? 1 : bias.column_stride;
      tile.dbias = bias.over_queries ? bias_sums - k_begin * tile.dbias_column_stride : bias.head(b, h);
      if (bias.over_queries) std::fill_n(bias_sums, p.backward_keys, Sum{0});
    }
    Index live_begin, live_end;
    mask_query_range(p.mask, b, h, k_begin, k_count, &live_begin, &live_end);
    const bool share_bias = bias.wanted() && bias.shared && !bias.over_queries;
    for (Index t = 0; t < p.query_tiles(); ++t) {
      tile.q_begin = t * p.query_tile;
      tile.q_count = std::min(p.query_tile, p.q_len - tile.q_begin);
      Turn* tile_turn = key_ranges() > 1 ? &tile_turns[(b * p.num_heads + h) * p.query_tiles() + t] : nullptr;
      if (tile_turn != nullptr) wait_for_turn(*tile_turn, range);
      if (share_bias) wait_for_turn(bias_turns[t], sequence);
      const bool live = tile.q_begin < live_end && tile.q_begin + tile.q_count > live_begin;
      run_tile(tile, range, b, h, live, worker);
      if (share_bias) pass_turn(bias_turns[t], sequence);
      if (tile_turn != nullptr) pass_turn(*tile_turn, range);
    }
    if (tile.sets_keys) zero_keys(b, h / p.group_size(), k_begin, k_count);
    if (bias.wanted() && bias.over_queries) {
      Turn& turn = bias_turns[p.query_tiles()];
      wait_for_turn(turn, sequence);
      bias.add_private(bias_sums, b, h, k_begin, k_count);
      pass_turn(turn, sequence);
    }
    if (tile.dv != nullptr && p.rows_can_be_empty()) {
      add_empty_dv(p, b, h, lse.data() + b * lse.stride(0) + h * lse.stride(1), lse.stride(2), tile.dout, tile.dout_stride,
                   k_begin, k_count, tile.dv, tile.dv_stride);
    }
  }

  /// One key range of one kv head.
  void run(Index item, int worker) const {
    const Index heads = p.batch * p.num_kv_heads;
    const Index range = kRoundedAtEnd<T> ? item % key_ranges() : item / heads;
    const Index head = kRoundedAtEnd<T> ? item / key_ranges() : item % heads;
    const Index b = head / p.num_kv_heads, g = head % p.num_kv_heads;
    const Index k_begin = range * p.backward_keys, k_count = std::min(p.backward_keys, p.kv_len - k_begin);
    const SumRows<T> keys = sums.keys(private_sums(worker), k_begin), values = sums.values(private_sums(worker), k_begin);
    if constexpr (kRoundedAtEnd<T>) {
      sums.take_slot(head);
      sums.clear(keys, k_begin, k_count);
      sums.clear(values, k_begin, k_count);
    }
    const Index group = p.group_size();
    if (group == 0 && sets_in_place()) zero_keys(b, g, k_begin, k_count);
    for (Index r = 0; r < group; ++r) run_head(range, b, g * group + r, item * group + r, r == 0, worker);
    if constexpr (kRoundedAtEnd<T>) {
      if (wants(gradients.dk)) sums.round(keys, gradients.dk, b, g, k_begin, k_count, gradients.accumulate);
      if (wants(gradients.dv)) sums.round(values, gradients.dv, b, g, k_begin, k_count, gradients.accumulate);
      if (range + 1 == key_ranges()) sums.leave_slot(head);
    }
  }
};

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
  check<ShapeError>(g.dbias.is_null() || g.dbias.sizes() == p.bias.sizes(), function,
                    "dbias must have the sizes of the bias: got dbias ", g.dbias, ", bias ", p.bias);
  const NamedBox outputs[] = {{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dbias", g.dbias}};
  const NamedBox inputs[] = {{"q", p.q},   {"k", p.k},   {"v", p.v},     {"bias", p.bias},
                             {"out", out}, {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}};
  check_outputs(function, outputs, inputs);
}

template <class T>
void zero_all(const View<T, 4>& view) {
  for (Index a = 0; a < view.size(0); ++a) {
    for (Index b = 0; b < view.size(1); ++b) {
      for (Index c = 0; c < view.size(2); ++c) {
        for (Index d = 0; d < view.size(3); ++d) view(a, b, c, d) = T{};
      }
    }
  }
}

std::size_t round_to_line(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

template <class T>
void backward(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v, const View<const T, 4>& out,
              const View<const Accumulator<T>, 3>& lse, const View<const T, 4>& dout, const AttentionGradients<T>& gradients,
              const AttentionOptions& options, Context& context) {
  using Sum = Accumulator<T>;
  constexpr const char* function = "attention_backward";
  const Problem<T> p = make_problem(function, q, k, v, options, context);
  check_gradients(function, p, gradients, out, lse, dout);
  const Index key_ranges = (p.kv_len + p.backward_keys - 1) / p.backward_keys;
  BackwardJob<T> job{
      p, out, lse, dout, gradients, BiasGradient<T>(gradients.dbias, p), GradientSums<T>(p, key_ranges, context.threads())};
  if (job.bias.wanted() && !gradients.accumulate) zero_all(gradients.dbias);

  const Index rows = p.batch * p.num_heads * p.q_len, tiles = p.query_tiles();
  const Index num_tile_turns = key_ranges > 1 ? p.batch * p.num_heads * tiles : 0;
  const Index num_turns = num_tile_turns + tiles + 1 + job.sums.num_turns();
  const std::size_t row_bytes = round_to_line(static_cast<std::size_t>(3 * rows) * sizeof(Sum));
  const std::size_t turn_bytes = round_to_line(static_cast<std::size_t>(num_turns) * sizeof(Turn));
  job.kernel_bytes = round_to_line(std::max(p.kernels->backward_scratch_bytes(p.head_dim, p.v_head_dim),
                                            p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim)));
  job.bias_bytes = job.bias.over_queries ? round_to_line(static_cast<std::size_t>(p.backward_keys) * sizeof(Sum)) : 0;
  job.worker_bytes = job.kernel_bytes + job.bias_bytes + job.sums.worker_bytes();
  const std::size_t shared_bytes = row_bytes + turn_bytes + job.sums.shared_bytes();
  const ScratchLease scratch =
      borrow_scratch(context, shared_bytes + job.worker_bytes * static_cast<std::size_t>(context.threads()));
  job.delta = scratch.template as<Sum>();
  job.lse2_high = job.delta + rows;
  job.lse2_low = job.lse2_high + rows;
  job.tile_turns = reinterpret_cast<Turn*>(scratch.data() + row_bytes);
  for (Index t = 0; t < num_turns; ++t) new (&job.tile_turns[t]) Turn(0);
  job.bias_turns = job.tile_turns + num_tile_turns;
  job.sums.place(scratch.data() + row_bytes + turn_bytes, job.bias_turns + tiles + 1);
  job.scratch = scratch.data() + shared_bytes;

  const Index items = job.key_ranges() * p.batch * p.num_kv_heads;
  const double flops = kElementFlops * static_cast<double>(rows * p.v_head_dim) + static_cast<double>(items) * kItemFlops +
                       p.pairs() * 2.0 * static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim);
  if (items == 0 && job.wants(gradients.dq) && !gradients.accumulate) zero_all(gradients.dq);  // no keys
  parallel_for_flops(context, items, flops, [&job](Index item, int worker) { job.run(item, worker); });
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
