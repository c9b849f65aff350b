// Work items are (key range, sequence, kv head). Key ranges are outermost; within each, parts of the batch with many
// keys come first. For 16-bit types groups of heads are outermost: few are in flight (gradient_sums.h). Scratch:
//   shared     order of a ragged batch | delta, lse2 in two parts, [B, H, Tq] each | turns | dq of heads in flight
//   per worker the kernels' | dbias of a key range (bias without a query axis) | dposition_bias | dk, dv, dq (16 bits)
#include "attention/backward/backward_driver.h"

#include <new>
#include <tuple>
#include <utility>

#include "attention/backward/backward_rows.h"
#include "attention/backward/bias_gradient.h"
#include "attention/backward/gradient_sums.h"
#include "attention/backward/position_gradient.h"
#include "attention/backward/shared_gradients.h"
#include "attention/call/empty_rows.h"
#include "core/threads/region.h"
#include "core/threads/turns.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// One part of the batch that has keys, in the order in which work items are claimed.
struct BackwardPart {
  Index part;
  Index first_item;  // where groups of heads are outermost
  Index first_turn;  // of its query tiles
};

/// A key range of kv head g of sequence b.
struct RangeAt {
  Index range, b, g, k_begin, k_count;
};

template <class Sum> struct Backward {
  struct Job;
  const Batch& batch;
  const BackwardInputs& inputs;
  const Gradients& gradients;
  const Problem& longest;
  const CarriedRanges* carried;
  Index threads;
  GradientSums<Sum> sums;
  BiasGradient<Sum> bias;
  OwnBytes own_bytes{};
  std::span<BackwardPart> parts{};
  Job* jobs = nullptr;             // of parts
  std::span<Index> range_first{};  // [ranges + 1]: items of smaller key ranges, where ranges are outermost
  Index rows, items = 0, num_tile_turns = 0;
  // Shared scratch; rows are stored sequence by sequence.
  Sum* numbers = nullptr;  // [3][rows]: delta, lse2 in two parts
  Turn* turns = nullptr;   // of tiles, [B, H, query tiles]; of the bias, [query tiles + 1]; of sums
  bool fetches;            // an item has the rows of a later one fetched

  Backward(const Batch& whole, const BackwardInputs& given, const Gradients& wanted, int num_threads,
      const CarriedRanges* some)
      : batch(whole),
        inputs(given),
        gradients(wanted),
        longest(batch.longest()),
        carried(some),
        threads(num_threads),
        sums(longest, num_threads, carried == nullptr ? nullptr : reinterpret_cast<Sum*>(carried->dq)),
        bias(gradients.dbias, longest, carried == nullptr && !whole.is_ragged() && !gradients.accumulate),
        rows(batch.num_queries() * longest.num_heads),
        fetches(fetches_rows()) {
    own_bytes.kernel = round_to_line(std::max(longest.backward_scratch_bytes(), longest.forward_scratch_bytes()));
    own_bytes.bias = bytes_of_bias(bias.over_queries);
    own_bytes.position = PositionGradient<Sum>{gradients.dposition_bias, &longest}.worker_bytes(longest.backward_keys);
    own_bytes.sums = sums.worker_bytes();
    for (Index n = 0; n < batch.parts(); ++n) num_tile_turns += turns_of(n);
  }

  /// `sums_bias`: a worker sums dbias over the queries of its key range.
  std::size_t bytes_of_bias(bool sums_bias) const { return sums_bias ? line_bytes<Sum>(longest.backward_keys) : 0; }
  /// Heads of K and V of a part.
  Index heads() const { return batch.num_sequences() * longest.num_kv_heads; }
  Index first_range() const { return carried == nullptr ? 0 : carried->begin; }
  /// Key ranges of part n that this call computes.
  Index ranges_here(Index n) const {
    return carried == nullptr ? batch.part(n).key_ranges() : carried->end - carried->begin;
  }
  Index turns_of(Index n) const {
    const Problem& p = batch.part(n);
    return p.key_ranges() > 1 ? batch.num_sequences() * p.num_heads * p.query_tiles() : 0;
  }
  Index num_bias_turns() const { return longest.query_tiles() + 1; }
  Index num_turns() const { return num_tile_turns + num_bias_turns() + sums.num_turns(); }
  bool sets_in_place() const { return !gradients.accumulate && !longest.rounds(); }
  /// Whether heads come from memory and are one item each.
  bool fetches_rows() const {
    const Problem& p = longest;
    const Index width = p.head_dim + p.v_head_dim;
    const Index size = p.num_heads * p.q_len * (2 * width) + 2 * p.num_kv_heads * p.kv_len * width;
    return !batch.is_ragged() && !p.rounds() && p.key_ranges() == 1 && p.batch * size * p.sum_bytes() > kFetchedBytes;
  }

  /// Divides the block at `base`; null only counts. Returns its bytes.
  std::size_t carve(std::byte* base) {
    Carver carver(base);
    const Index ranges = longest.key_ranges() + 1;
    parts = {carver.array<BackwardPart>(batch.parts()), static_cast<std::size_t>(batch.parts())};
    jobs = carver.array<Job>(batch.parts());
    range_first = {carver.array<Index>(ranges), static_cast<std::size_t>(ranges)};
    numbers = carver.array<Sum>(carried == nullptr ? 3 * rows : 0);
    if (carried != nullptr) numbers = reinterpret_cast<Sum*>(carried->numbers);
    turns = carver.array<Turn>(num_turns());
    sums.set_memory(
        carver.array<std::byte>(static_cast<Index>(sums.shared_bytes())), turns + num_tile_turns + num_bias_turns());
    return carver.used();
  }

  /// Orders the parts that have keys, numbers their items and makes their jobs.
  void number_items() {
    std::size_t live = 0;
    for (Index n = 0; n < batch.parts(); ++n) {
      if (batch.kv_len(n) > 0) parts[live++].part = n;
    }
    parts = parts.first(live);
    const auto earlier = [this](const BackwardPart& x, const BackwardPart& y) {
      const Index x_keys = batch.kv_len(x.part), y_keys = batch.kv_len(y.part);
      return x_keys != y_keys ? x_keys > y_keys : x.part < y.part;
    };
    if (live > 1) std::sort(parts.begin(), parts.end(), earlier);
    std::ranges::fill(range_first, 0);
    Index first_turn = 0;
    for (BackwardPart& part : parts) {
      part.first_item = items;
      part.first_turn = first_turn;
      first_turn += turns_of(part.part);
      const Index ranges = ranges_here(part.part);
      items += heads() * ranges;
      for (Index range = 1; range <= ranges; ++range) range_first[static_cast<std::size_t>(range)] += heads();
    }
    for (std::size_t range = 1; range < range_first.size(); ++range) range_first[range] += range_first[range - 1];
    static_assert(std::is_trivially_destructible_v<Job>);
    for (std::size_t at = 0; at < parts.size(); ++at) {
      const Index n = parts[at].part, first = batch.first_sequence(n);
      const Problem& p = batch.part(n);
      new (jobs + at) Job{*this, p, {gradients.dposition_bias, &p}, rows_of(n, p), batch.queries(gradients.dq, n),
          batch.keys(gradients.dk, n), batch.keys(gradients.dv, n),
          parts[at].first_turn - first * p.num_heads * p.query_tiles(),
          (static_cast<Index>(at) - first) * p.num_kv_heads};
    }
  }

  BackwardRows<Sum> rows_of(Index n, const Problem& p) const {
    return {p, batch.queries(inputs.out, n), batch.queries(inputs.lse, n), batch.queries(inputs.dout, n),
        batch.queries(gradients.dlse, n), numbers, numbers + rows, numbers + 2 * rows,
        p.num_heads * (batch.queries_before(n) - batch.first_sequence(n) * p.q_len),
        batch.queries(gradients.lse_low, n), carried};
  }

  /// Head and key range of item `own` of a part: all of range 0 first. For 16-bit types the heads in flight go
  /// together, so that threads have heads of their own; one by one where items add to one sum, whose order may not
  /// depend on threads.
  std::pair<Index, Index> head_and_range(Index own, Index ranges) const {
    const bool one_sum = !gradients.dbias.is_null() || !gradients.dposition_bias.is_null();
    const Index wide = one_sum ? 1 : sums.heads_in_flight(), first = own / (ranges * wide) * wide;
    const Index count = std::min(wide, heads() - first), rest = own - first * ranges;
    return {first + rest % count, rest / count};
  }

  void run(Index item, std::byte* scratch) const {
    const BackwardPart* part = nullptr;
    Index head = 0, range = 0;
    if (longest.rounds()) {
      part = &part_of<BackwardPart>(parts, item);
      std::tie(head, range) = head_and_range(item - part->first_item, ranges_here(part->part));
    } else {
      const auto after = std::upper_bound(range_first.begin(), range_first.end(), item);
      const Index own = item - *(after - 1);
      range = after - range_first.begin() - 1;
      head = own % heads();
      part = &parts[static_cast<std::size_t>(own / heads())];
    }
    range += first_range();
    const Job& job = jobs[part - parts.data()];
    const Problem& p = job.p;
    const Index first = batch.first_sequence(part->part);
    const Index later = head + threads, k_begin = range * p.backward_keys;  // workers claim items in turn
    Ahead ahead;
    const bool fetch = fetches && later < heads();
    if (fetch) ahead = job.ahead_of(later / p.num_kv_heads, later % p.num_kv_heads);
    job.run(item,
        {range, first + head / p.num_kv_heads, head % p.num_kv_heads, k_begin,
            std::min(p.backward_keys, p.kv_len - k_begin)},
        fetch ? &ahead : nullptr, {own_bytes, scratch});
  }

  /// A part of the batch as its items see it.
  struct Job {
    const Backward& call;
    const Problem& p;
    PositionGradient<Sum> position;
    BackwardRows<Sum> rows;
    AnyView dq, dk, dv;
    Index first_turn, first_head;  // of sequence 0: among tiles' turns, and among kv heads as they are claimed

    /// Where rows of a key lie in gradients.
    Index row_of(Index key) const { return call.carried == nullptr ? key : key - call.carried->first_key; }
    bool sets_keys() const { return call.sets_in_place() && call.carried == nullptr; }
    /// Sets dk and dv of keys that no query attends.
    void zero_keys(const RangeAt& at) const {
      for (const AnyView* each : {&dk, &dv}) zero_rows(*each, at.b, at.g, row_of(at.k_begin), at.k_count);
    }
    /// Inputs and outputs of kv head g of sequence b and of the first query head of its group.
    Ahead ahead_of(Index b, Index g) const {
      const Index h = g * p.group_size();
      Ahead ahead = queries_ahead(b, h, {p.first_query, p.first_query + p.q_len}, true);
      for (const AnyView* x : {&p.keys.k, &p.keys.v, &dk, &dv}) add_rows_of(ahead, *x, b, g, 0, p.kv_len);
      return ahead;
    }

    /// Rows of a query tile of a head, and of its out where delta is computed.
    Ahead queries_ahead(Index b, Index h, const Positions& queries, bool delta) const {
      const Index first = queries.begin - p.first_query, count = queries.end - queries.begin;
      Ahead ahead{};
      for (const AnyView* x : {&p.q, &rows.dout}) add_rows_of(ahead, *x, b, h, first, count);
      if (delta) add_rows_of(ahead, rows.out, b, h, first, count);
      if (!p.rounds()) add_rows_of(ahead, dq, b, h, first, count);
      return ahead;
    }

    /// `item` is its number in the order in which items are claimed; `ahead` is fetched meanwhile, or null.
    void run(Index item, const RangeAt& at, Ahead* ahead, const OwnScratch<Sum>& own) const {
      const Index head = first_head + at.b * p.num_kv_heads + at.g, group = p.group_size();
      if (p.rounds()) call.sums.wait_for_slot(head);
      const auto sums_of = [&](const AnyView& gradient, SumRows<Sum> of_worker) {
        if (!p.rounds()) return rows_of_caller<Sum>(gradient, at.b, at.g, row_of(at.k_begin));
        if (gradient.data == nullptr) return SumRows<Sum>{nullptr, of_worker.stride};
        of_worker.clear(at.k_count);
        return of_worker;
      };
      const SumRows<Sum> keys = sums_of(dk, call.sums.keys(own.sums)), values = sums_of(dv, call.sums.values(own.sums));
      if (group == 0 && sets_keys()) zero_keys(at);
      for (Index r = 0; r < group; ++r) {
        BackwardTile<Sum> tile = rows.tile(at.b, at.g * group + r, p.tile(0));
        tile.k_begin = at.k_begin;
        tile.k_count = at.k_count;
        tile.dk = keys.data;
        tile.dv = values.data;
        tile.dk_stride = keys.stride;
        tile.dv_stride = values.stride;
        tile.sets_keys = r == 0 && sets_keys();
        run_head(tile, at, at.g * group + r, item * group + r, r + 1 == group ? ahead : nullptr, own);
      }
      if (!p.rounds()) return;
      const bool adds = call.gradients.accumulate || call.carried != nullptr;
      write_sums(p, keys, dk, at.b, at.g, row_of(at.k_begin), at.k_count, adds);
      write_sums(p, values, dv, at.b, at.g, row_of(at.k_begin), at.k_count, adds);
      if (at.range + 1 == p.key_ranges()) call.sums.pass_slot(head);
    }

    /// All query tiles of one head. `sequence` numbers (item, head of the group) for shared dbias.
    void run_head(BackwardTile<Sum>& tile, const RangeAt& at, Index h, Index sequence, Ahead* ahead,
        const OwnScratch<Sum>& own) const {
      const BiasGradient<Sum>& dbias = call.bias;
      Turn* const bias_turns = call.turns + call.num_tile_turns;
      const Index b = at.b, whole_head = p.first_head + h;  // as masks and gradients of biases count it
      if (dbias.wanted()) dbias.begin_tile(tile, own.bias, b, whole_head);
      if (position.wanted()) position.begin_item(own.position);
      const bool share_bias = dbias.wanted() && dbias.shared && !dbias.over_queries;
      for (Index t = 0; t < p.query_tiles(); ++t) {
        rows.set_queries(tile, b, h, p.tile(t));
        Turn* tile_turn =
            p.key_ranges() > 1 ? &call.turns[first_turn + (b * p.num_heads + h) * p.query_tiles() + t] : nullptr;
        if (tile_turn != nullptr) wait_for_turn(*tile_turn, at.range);
        if (share_bias) wait_for_turn(bias_turns[t], sequence);
        Ahead next;
        const bool last = t + 1 == p.query_tiles();
        if (!last) next = queries_ahead(b, h, p.tile(t + 1), at.range == 0);
        tile.ahead = last ? ahead : &next;
        const bool live = mask_meets(p.mask, b, whole_head, tile.q_begin, tile.q_count, at.k_begin, at.k_count);
        run_tile(tile, at, h, live, own);
        if (share_bias) pass_turn(bias_turns[t], sequence);
        if (tile_turn != nullptr) pass_turn(*tile_turn, at.range);
      }
      // Turns of tiles that only other sequences have.
      for (Index t = p.query_tiles(); share_bias && t < call.longest.query_tiles(); ++t) {
        wait_for_turn(bias_turns[t], sequence);
        pass_turn(bias_turns[t], sequence);
      }
      if (tile.sets_keys) zero_keys(at);
      const bool adds_bias = dbias.wanted() && dbias.over_queries;
      if (adds_bias || position.wanted()) {
        Turn& turn = bias_turns[call.longest.query_tiles()];
        wait_for_turn(turn, sequence);
        if (adds_bias) dbias.add_private(own.bias, b, whole_head, at.k_begin, at.k_count);
        if (position.wanted()) position.add(own.position, whole_head);
        pass_turn(turn, sequence);
      }
      if (tile.dv != nullptr && p.rows_can_be_empty()) {
        add_empty_dv(p, b, h, rows.lse, rows.dout, at.k_begin, at.k_count, tile.dv, tile.dv_stride);
      }
    }

    /// One query tile, in the range's turn. The first range computes delta and lse2; the others wait for them.
    void run_tile(BackwardTile<Sum>& tile, const RangeAt& at, Index h, bool live, const OwnScratch<Sum>& own) const {
      const Index b = at.b, first = tile.q_begin - p.first_query;
      SumRows<Sum> queries{};
      if (dq.data != nullptr) {
        queries = p.rounds() ? call.sums.queries(own.sums, first_head + b * p.num_kv_heads + at.g, h, first)
                             : rows_of_caller<Sum>(dq, b, h, first);
        if (p.rounds() && at.range == 0) queries.clear(tile.q_count);
      }
      tile.dq = queries.data;
      tile.dq_stride = queries.stride;
      if (at.range == 0) rows.prepare(tile, b, h, own.kernel);
      tile.sets_dq = at.range == 0 && call.sets_in_place();
      if (live) {
        if (position.wanted()) tile.dposition = position.begin_tile(tile, own.position);
        run_backward(p.kernels<Sum>(), tile, own.kernel);
        if (position.wanted()) position.end_tile(tile, own.position);
        tile.sets_keys = false;
      } else if (tile.sets_dq) {
        zero_rows(dq, b, h, first, tile.q_count);
      }
      if (!p.rounds() || at.range + 1 != p.key_ranges()) return;
      write_sums(p, queries, dq, b, h, first, tile.q_count, call.gradients.accumulate);
    }
  };

  /// Initialises what no item overwrites: gradients that items add to, and dq of parts that have no keys.
  void clear() const {
    if (gradients.accumulate) return;
    if (!bias.sets) zero_all(gradients.dbias);
    zero_all(gradients.dsinks);
    zero_all(gradients.dposition_bias);
    for (Index n = 0; n < batch.parts(); ++n) {
      if (batch.kv_len(n) > 0) continue;
      const AnyView dq = batch.queries(gradients.dq, n);
      const Index first = batch.first_sequence(n);
      for (Index b = first; b < first + batch.num_sequences(); ++b) {
        for (Index h = 0; h < dq.size(1); ++h) zero_rows(dq, b, h, 0, dq.size(2));
      }
    }
  }

  /// Runs after all items: adds every part's share, in the order of the parts.
  void add_dsinks() const {
    for (Index n = 0; n < batch.parts(); ++n) {
      const BackwardRows<Sum> part = rows_of(n, batch.part(n));
      const Index first = batch.first_sequence(n), count = batch.num_sequences();
      if (batch.kv_len(n) == 0) part.prepare_without_keys(first, count);
      add_sink_gradient(part, first, count, gradients.dsinks,
          [this](Index row, Index) { return -static_cast<double>(numbers[row]); });
    }
  }
};

}  // namespace

void backward_batch(const Batch& batch, const BackwardInputs& inputs, const Gradients& gradients, Context& context,
    const CarriedRanges* carried) {
  with_sums(batch.longest().q.type, [&]<class Sum>(Sum) {
    Backward<Sum> call(batch, inputs, gradients, context.threads(), carried);
    call.clear();
    if (batch.parts() == 0) return;
    const ScratchLease scratch = borrow_scratch(context, call.carve(nullptr));
    call.carve(scratch.data());
    for (Index t = 0; t < call.num_turns(); ++t) {
      new (&call.turns[t]) Turn(t < call.num_tile_turns ? call.first_range() : 0);
    }
    call.number_items();
    const Problem& longest = call.longest;
    double pairs = 0;
    for (Index n = 0; n < batch.parts(); ++n) pairs += batch.pairs(n);
    const double flops = kElementFlops * static_cast<double>(call.rows * longest.v_head_dim) +
                         static_cast<double>(call.items) * kItemFlops +
                         pairs * 2.0 * static_cast<double>(3 * longest.head_dim + 2 * longest.v_head_dim);
    run_items(context, {call.items, flops, call.own_bytes.all()},
        [&call](Index item, std::byte* own) { call.run(item, own); });
    if (!gradients.dsinks.is_null()) call.add_dsinks();
  });
}

void plan_backward(const Batch& batch, const Context& context, AttentionPlan& plan) {
  if (batch.parts() == 0) return;
  with_sums(batch.longest().q.type, [&]<class Sum>(Sum) {
    const BackwardInputs inputs{};
    const Gradients none{};
    Backward<Sum> call(batch, inputs, none, context.threads(), nullptr);
    call.own_bytes.bias = call.bytes_of_bias(sums_over_queries(call.longest.bias, call.longest));
    plan.backward_scratch_bytes = call.own_bytes.all();
    plan.backward_shared_bytes = call.carve(nullptr) + batch.shared_bytes();
  });
}

}  // namespace qkv::inline v0
