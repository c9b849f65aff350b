// Work items are (key range, sequence, kv head). Key ranges are outermost; within each, parts of the batch with many
// keys come first. For 16-bit types groups of heads are outermost: few are in flight (gradient_sums.h). Scratch:
//   shared     order of a ragged batch | delta, lse2 in two parts, [B, H, Tq] each | turns | dq of heads in flight
//   per worker the kernels' | dbias of a key range (bias without a query axis) | dposition_bias | dk, dv, dq (16 bits)
#include "attention/backward/backward_driver.h"

#include <array>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "attention/backward/backward_job.h"
#include "attention/backward/shared_gradients.h"
#include "core/threads/region.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// One part of the batch that has keys, in the order in which work items are claimed.
struct BackwardPart {
  Index part;
  Index first_item;  // used when groups of heads are outermost
  Index first_turn;  // of its query tiles
};

template <class Sum> struct BackwardDriver {
  const Batch& batch;
  const BackwardInputs& inputs;
  const Gradients& gradients;
  const Problem& longest;
  const CarriedRanges* carried;
  Index first_range, num_ranges;  // of this call; of a ragged batch, of the longest sequence
  GradientSums<Sum> sums;
  BiasGradient<Sum> bias;
  OwnBytes own_bytes{};
  std::array<BackwardPart, 1> dense_part{};
  std::span<BackwardPart> parts{};
  std::span<Index>
      range_first{};  // [ranges + 1]: items of smaller key ranges of a ragged batch, where ranges are outermost
  Index rows, items = 0, num_tile_turns = 0;
  // Shared scratch; rows are stored sequence by sequence.
  Sum* numbers = nullptr;                       // [3][rows]: delta, lse2 in two parts
  Turn* turns = nullptr;                        // of tiles, of the bias, of sums
  std::optional<BackwardJob<Sum>> dense_job{};  // shared by all items of a dense batch
  Index threads;
  bool fetches = false;  // rows of the next head

  BackwardDriver(const Batch& whole, const BackwardInputs& given, const Gradients& wanted, int num_threads,
      const CarriedRanges* some)
      : batch(whole),
        inputs(given),
        gradients(wanted),
        longest(batch.longest()),
        carried(some),
        first_range(carried == nullptr ? 0 : carried->begin),
        num_ranges(carried == nullptr ? longest.key_ranges() : carried->end - carried->begin),
        sums(longest, longest.key_ranges(), num_threads,
            carried == nullptr ? nullptr : reinterpret_cast<Sum*>(carried->dq)),
        bias(gradients.dbias, longest, carried == nullptr && !whole.is_ragged() && !gradients.accumulate),
        rows(batch.num_queries() * longest.num_heads),
        threads(num_threads) {
    own_bytes.kernel = round_to_line(std::max(longest.backward_scratch_bytes(), longest.forward_scratch_bytes()));
    own_bytes.bias = bytes_of_bias(bias.over_queries);
    own_bytes.position = PositionGradient<Sum>{gradients.dposition_bias, &longest}.worker_bytes(longest.backward_keys);
    own_bytes.sums = sums.worker_bytes();
    for (Index n = 0; n < batch.parts(); ++n) {
      num_tile_turns += batch.with_part(n, [&](const Problem& p) { return turns_of(p); });
    }
  }

  /// `sums_bias`: a worker sums dbias over the queries of its key range.
  std::size_t bytes_of_bias(bool sums_bias) const { return sums_bias ? line_bytes<Sum>(longest.backward_keys) : 0; }
  Index turns_of(const Problem& p) const {
    return p.key_ranges() > 1 ? batch.num_sequences() * p.num_heads * p.query_tiles() : 0;
  }
  Index num_bias_turns() const { return longest.query_tiles() + 1; }
  Index num_turns() const { return num_tile_turns + num_bias_turns() + sums.num_turns(); }

  /// Divides the block at `base`; null only counts. Returns its bytes.
  std::size_t carve(std::byte* base) {
    Carver carver(base);
    parts = dense_part;
    if (batch.is_ragged()) {
      parts = {carver.array<BackwardPart>(batch.parts()), static_cast<std::size_t>(batch.parts())};
      const Index ranges = longest.key_ranges() + 1;
      range_first = {carver.array<Index>(ranges), static_cast<std::size_t>(ranges)};
    }
    numbers = carver.array<Sum>(carried == nullptr ? 3 * rows : 0);
    if (carried != nullptr) numbers = reinterpret_cast<Sum*>(carried->numbers);
    turns = carver.array<Turn>(num_turns());
    sums.set_memory(
        carver.array<std::byte>(static_cast<Index>(sums.shared_bytes())), turns + num_tile_turns + num_bias_turns());
    return carver.used();
  }

  /// Orders the parts that have keys and numbers their items.
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
      batch.with_part(part.part, [&](const Problem& p) {
        const Index heads = batch.num_sequences() * p.num_kv_heads;
        part.first_item = items;
        part.first_turn = first_turn;
        items += heads * (batch.is_ragged() ? p.key_ranges() : num_ranges);
        first_turn += turns_of(p);
        if (!batch.is_ragged()) return;
        for (Index range = 0; range < p.key_ranges(); ++range)
          range_first[static_cast<std::size_t>(range) + 1] += heads;
      });
    }
    for (std::size_t range = 1; range < range_first.size(); ++range) range_first[range] += range_first[range - 1];
    if (batch.is_ragged() || live == 0) return;
    dense_job.emplace(job_of(parts[0], longest, gradients));
    fetches = dense_job->fetches();
  }

  BackwardRows<Sum> rows_of(Index n, const Problem& p) const {
    return {p, batch.queries(inputs.out, n), batch.queries(inputs.lse, n), batch.queries(inputs.dout, n),
        batch.queries(gradients.dlse, n), numbers, numbers + rows, numbers + 2 * rows,
        p.num_heads * (batch.queries_before(n) - batch.first_sequence(n) * p.q_len),
        batch.queries(gradients.lse_low, n)};
  }

  BackwardJob<Sum> job_of(const BackwardPart& part, const Problem& p, const Gradients& of_part) const {
    const Index first = batch.first_sequence(part.part);
    return {p, rows_of(part.part, p), of_part, bias, {gradients.dposition_bias, &p}, sums, turns,
        turns + num_tile_turns, part.first_turn - first * p.num_heads * p.query_tiles(),
        (&part - parts.data() - first) * p.num_kv_heads, longest.query_tiles(), carried};
  }

  /// Runs head `head`, counted over the heads of the part's sequences; `first` is the number of the first of these.
  void run(Index item, const BackwardJob<Sum>& job, Index first, Index head, Index range, std::byte* own) const {
    const Index heads = job.p.num_kv_heads;
    const Index later = head + threads;  // workers claim items in turn
    Ahead ahead;
    const bool fetch = fetches && later < longest.batch * heads;
    if (fetch) ahead = job.ahead_of(later / heads, later % heads);
    job.run(item, range, first + head / heads, head % heads, fetch ? &ahead : nullptr, {own_bytes, own});
  }

  /// Head and key range of item `own` of `heads` heads: all of range 0 first. For 16-bit types the heads in flight go
  /// together, so that threads have heads of their own; one by one where items add to one sum, whose order may not
  /// depend on threads.
  std::pair<Index, Index> head_and_range(Index own, Index heads, Index ranges) const {
    const bool one_sum = !gradients.dbias.is_null() || !gradients.dposition_bias.is_null();
    const Index wide = !longest.rounds() ? heads
                       : one_sum         ? 1
                                         : sums.heads_in_flight(),
                first = own / (ranges * wide) * wide;
    const Index count = std::min(wide, heads - first), rest = own - first * ranges;
    return {first + rest % count, rest / count};
  }

  void run(Index item, std::byte* scratch) const {
    if (!batch.is_ragged()) {
      const auto [head, range] = head_and_range(item, longest.batch * longest.num_kv_heads, num_ranges);
      run(item, *dense_job, 0, head, first_range + range, scratch);
      return;
    }
    const BackwardPart* part = nullptr;
    Index own = 0, range = 0;
    if (longest.rounds()) {
      part = &part_of<BackwardPart>(parts, item);
      own = item - part->first_item;
    } else {
      const auto after = std::upper_bound(range_first.begin(), range_first.end(), item);
      range = after - range_first.begin() - 1;
      own = item - *(after - 1);
      part = &parts[static_cast<std::size_t>(own / longest.num_kv_heads)];
      own %= longest.num_kv_heads;
    }
    batch.with_part(part->part, [&](const Problem& p) {
      if (longest.rounds()) {
        std::tie(own, range) = head_and_range(own, batch.num_sequences() * p.num_kv_heads, p.key_ranges());
      }
      const Gradients of_part{.dq = batch.queries(gradients.dq, part->part),
          .dk = batch.keys(gradients.dk, part->part),
          .dv = batch.keys(gradients.dv, part->part),
          .accumulate = gradients.accumulate};
      run(item, job_of(*part, p, of_part), part->part, own, range, scratch);
    });
  }

  /// Initialises what no item overwrites: gradients that items add to, and dq of parts that have no keys.
  void clear() const {
    if (gradients.accumulate) return;
    if (!bias.sets) zero_all(gradients.dbias);
    zero_all(gradients.dsinks);
    zero_all(gradients.dposition_bias);
    for (Index n = 0; n < batch.parts() && gradients.dq.data != nullptr; ++n) {
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
      batch.with_part(n, [&](const Problem& p) {
        const BackwardRows<Sum> part = rows_of(n, p);
        const Index first = batch.first_sequence(n), count = batch.num_sequences();
        if (batch.kv_len(n) == 0) part.prepare_without_keys(first, count);
        add_sink_gradient(part, first, count, gradients.dsinks,
            [this](Index row, Index) { return -static_cast<double>(numbers[row]); });
      });
    }
  }
};

}  // namespace

void backward_batch(const Batch& batch, const BackwardInputs& inputs, const Gradients& gradients, Context& context,
    const CarriedRanges* carried) {
  with_sums(batch.longest().q.type, [&]<class Sum>(Sum) {
    BackwardDriver<Sum> driver(batch, inputs, gradients, context.threads(), carried);
    driver.clear();
    if (batch.parts() == 0) return;
    const ScratchLease scratch = borrow_scratch(context, driver.carve(nullptr));
    driver.carve(scratch.data());
    for (Index t = 0; t < driver.num_turns(); ++t) {
      new (&driver.turns[t]) Turn(t < driver.num_tile_turns ? driver.first_range : 0);
    }
    driver.number_items();
    const Problem& longest = driver.longest;
    double pairs = 0;
    for (Index n = 0; n < batch.parts(); ++n) pairs += batch.pairs(n);
    const double flops = kElementFlops * static_cast<double>(driver.rows * longest.v_head_dim) +
                         static_cast<double>(driver.items) * kItemFlops +
                         pairs * 2.0 * static_cast<double>(3 * longest.head_dim + 2 * longest.v_head_dim);
    run_items(context, {driver.items, flops, driver.own_bytes.all()},
        [&driver](Index item, std::byte* own) { driver.run(item, own); });
    if (!gradients.dsinks.is_null()) driver.add_dsinks();
  });
}

void plan_backward(const Batch& batch, const Context& context, AttentionPlan& plan) {
  if (batch.parts() == 0) return;
  with_sums(batch.longest().q.type, [&]<class Sum>(Sum) {
    const BackwardInputs inputs{};
    const Gradients none{};
    BackwardDriver<Sum> driver(batch, inputs, none, context.threads(), nullptr);
    driver.own_bytes.bias = driver.bytes_of_bias(sums_over_queries(driver.longest.bias, driver.longest));
    plan.backward_scratch_bytes = driver.own_bytes.all();
    plan.backward_shared_bytes = driver.carve(nullptr);
  });
}

}  // namespace qkv::inline v0
