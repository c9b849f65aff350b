// Runs a Schedule: what one item of each kind does.
#include "attention/forward/forward_driver.h"

#include <cstring>

#include "attention/forward/fill.h"
#include "attention/plan/schedule.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "core/threads/turns.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

template <class Sum> struct ForwardDriver {
  const Batch& batch;
  const Listed& lists;
  const Outputs& outputs;
  CaptureJob<Sum>* capture;
  const CarriedTiles<Sum>* carried;
  Index threads;
  const Schedule& schedule;
  std::byte* state;     // of the rows whose parts are being merged
  Turn turn{0};         // to merge
  bool whole, fetches;  // one block writes all outputs; a tile fetches the rows of the next one

  ForwardDriver(const Schedule& work, const Outputs& wanted, CaptureJob<Sum>* captured, const CarriedTiles<Sum>* rows,
      int num_threads, std::byte* merged)
      : batch(work.batch),
        lists(work.lists),
        outputs(wanted),
        capture(captured),
        carried(rows),
        threads(num_threads),
        schedule(work),
        state(merged),
        whole(!batch.is_ragged() && work.blocks.size() == 1 && batch.longest().kv_len > 0),
        fetches(!batch.is_ragged() && carried == nullptr && fetches_rows(batch.longest())) {}

  /// Outputs of a block's items, of its part of the batch.
  Outputs outputs_of(const Block& block, const Problem& p) const {
    const auto own = [&](const AnyView& all) { return block.rows ? batch.queries(all, block.part) : AnyView(); };
    Outputs to{.out = own(outputs.out), .lse = own(outputs.lse), .kind = outputs.kind, .lse_low = own(outputs.lse_low)};
    if (!block.weights || outputs.weights.data == nullptr || p.kv_len == 0) return to;
    to.weights = outputs.weights;
    if (!batch.is_ragged()) return to;
    to.weights.data += block.first_weight * p.sum_bytes();
    to.weights.sizes = {p.batch, p.num_heads, p.q_len, p.kv_len};
    to.weights.strides = {0, p.q_len * p.kv_len, p.kv_len, 1};
    return to;
  }

  void run(Index item, std::byte* scratch) {
    const Block& block = part_of<Block>(schedule.blocks, item);
    const Index number = item - block.first_item;
    if (whole) return run(block, batch.longest(), outputs, number, scratch);
    const Problem& p = batch.part(block.part);
    run(block, p, outputs_of(block, p), number, scratch);
  }
  void run(const Block& block, const Problem& p, const Outputs& to, Index number, std::byte* scratch) {
    if (block.how == How::kTiles) return run_tile(block, p, to, number, scratch);
    if (block.how == How::kDecode) return run_decode(block, p, to, number, scratch);
    run_list(block, p, to, number, scratch);
  }

  /// Whether heads come from memory: then a tile fetches the rows of the next one.
  static bool fetches_rows(const Problem& p) {
    const Index rows = p.num_heads * p.q_len + p.num_kv_heads * p.kv_len;
    return !p.keys.is_cache() && p.batch * rows * (p.head_dim + p.v_head_dim) * p.q.element_bytes() > kFetchedBytes;
  }
  /// Memory that `next` uses and `now` does not; K and V only where they may stay in the cache until then.
  static Ahead ahead_of(const Problem& p, const AnyView& out, const TileAt& now, const TileAt& next) {
    const Positions queries = p.tile(next.t);
    const Index q_begin = queries.begin - p.first_query, q_count = queries.end - queries.begin;
    const Index head = next.h / p.group_size();
    const bool reads_kv = (now.b != next.b || now.h / p.group_size() != head) && p.kv_len <= kFetchedKeys;
    const Index keys = reads_kv ? p.kv_len : 0;
    Ahead ahead{};
    add_rows_of(ahead, p.q, next.b, next.h, q_begin, q_count);
    add_rows_of(ahead, p.keys.k, next.b, head, 0, keys);
    add_rows_of(ahead, p.keys.v, next.b, head, 0, keys);
    add_rows_of(ahead, out, next.b, next.h, q_begin, q_count);
    return ahead;
  }

  void run_tile(const Block& block, const Problem& p, const Outputs& to, Index number, std::byte* own) const {
    const Index tiles = p.query_tiles(), first = batch.first_sequence(block.part);
    const auto tile_at = [&](Index n) {  // late queries first: causal makes them cost most
      return TileAt{first + n / tiles / p.num_heads, n / tiles % p.num_heads, tiles - 1 - n % tiles};
    };
    const TileAt at = tile_at(number);
    const Index later = number + threads;  // workers claim items in turn
    const bool fetch = fetches && later < block.items;
    Ahead ahead;
    if (fetch) ahead = ahead_of(p, to.out, at, tile_at(later));
    Sum row_lse[kMaxQueryTile], row_low[kMaxQueryTile];
    ForwardTile<Sum> tile = fill_tile(p, to, at, row_lse, row_low);
    if (fetch) tile.ahead = &ahead;
    if (block.kept_bytes > 0) {
      tile.exponentials = reinterpret_cast<Sum*>(own + block.kernel_bytes);
      tile.chunk_shifts = tile.exponentials + key_chunks(p) * p.key_tile * p.strip;
    }
    CarriedRows<Sum> rows;
    if (carried != nullptr) {
      const Index n = (at.b * p.num_heads + at.h) * tiles + at.t;
      if (carried->wanted[n] == 0) return;
      rows = carried->of(n, p.v_head_dim);
      tile.carried = &rows;
      if (carried->total_max != nullptr) {
        tile.row_max2 = carried->total_max + n * carried->tile_rows;
        tile.row_sum = carried->total_sum + n * carried->tile_rows;
      }
    }
    if (capture != nullptr && block.weights && capture->slot_of(at.h) >= 0) {
      capture->forward(tile, at.b, at.h, own, own + block.kernel_bytes + block.kept_bytes);
    } else {
      run_forward(p.kernels<Sum>(), tile, own);
    }
    if (carried == nullptr || rows.overflown != nullptr) finish_tile(p, to, at, tile);
  }

  void run_decode(const Block& block, const Problem& p, const Outputs& to, Index number, std::byte* own) {
    const Index head = number / block.keys.parts, g = head % p.num_kv_heads;
    const RowsAt at{
        batch.first_sequence(block.part) + head / p.num_kv_heads, g * p.group_size(), p.group_size(), 0, p.q_len};
    Sum row_lse[kDecodeRowLimit];
    DecodeGroup<Sum> t = fill_group<Sum>(p, to, at, p.keys.head(at.b, g), row_lse);
    t.mask_differs = block.keys.mask_differs;
    run_parts(block, p, to, at, t, live_keys(p, at.b, at.h), number, own);
  }

  void run_list(const Block& block, const Problem& p, const Outputs& to, Index number, std::byte* own) {
    const KeyParts& parts = block.keys;
    const Index row = number / block.items_of_rows(), i = row % p.q_len, piece = row / p.q_len % schedule.pieces(block);
    const Index heads = row / p.q_len / schedule.pieces(block), first = piece * parts.rows;
    const RowsAt at{heads / lists.blocks(), heads % lists.blocks() * lists.block_heads() + first,
        std::min(parts.rows, lists.block_heads() - first), i, 1};
    auto* pages = reinterpret_cast<Index*>(own + parts.scratch_bytes + 2 * parts.state_bytes);
    const HeadKeys keys = lists.rows(at.b, at.h, at.i, 0, p.length(at.b), pages, nullptr);
    Sum row_lse[kMaxQueryTile];
    if (parts.state_bytes == 0) {
      run_forward(p.kernels<Sum>(), fill_listed_tile(p, to, at, keys, row_lse), own);
      return finish_rows(p, to, at, row_lse);
    }
    DecodeGroup<Sum> t = fill_group(p, to, at, keys, row_lse);
    t.scores.mask = {};  // hides none of the listed keys
    t.scores.kv_len = keys.held.end;
    run_parts(block, p, to, at, t, {0, keys.held.end}, number, own);
  }

  /// The parts of the keys that an item computes, of which those in `live` count.
  void run_parts(const Block& block, const Problem& p, const Outputs& to, const RowsAt& at, const DecodeGroup<Sum>& t,
      const Positions& live, Index number, std::byte* own) {
    const KeyParts& parts = block.keys;
    const auto [first, last] = PartRange(live, parts.part_keys);
    const Index begin = first + number % block.items_of_rows() * block.parts_of_item;
    const DecodeKernels<Sum>& kernels = p.decode<Sum>();
    std::byte *const mine = own + parts.scratch_bytes, *const later = mine + parts.state_bytes;
    bool filled = false;
    for (Index part = begin; part <= std::min(begin + block.parts_of_item - 1, last); ++part) {
      const Index k_begin = part * parts.part_keys, k_end = std::min(k_begin + parts.part_keys, t.scores.kv_len);
      std::byte* const to_state = filled ? later : mine;
      kernels.part(t, k_begin, k_end, own, to_state);
      if (filled) kernels.merge(t, mine, later);
      filled = true;
    }
    const auto finish = [&](std::byte* merged) {
      kernels.finish(t, merged);
      finish_rows(p, to, at, t.lse);
    };
    if (!block.merges_in_turn()) return finish(mine);
    wait_for_turn(turn, block.first_turn + number);
    if (filled && begin == first) {
      std::memcpy(state, mine, parts.state_bytes);
    } else if (filled) {
      kernels.merge(t, state, mine);
    }
    if (filled && begin == last) finish(state);
    pass_turn(turn, block.first_turn + number);
  }
};

}  // namespace

template <class Sum> void forward_batch(const Batch& batch, const Outputs& outputs, CaptureJob<Sum>* capture,
    Context& context, const CarriedTiles<Sum>* carried) {
  if (!batch.is_ragged() && capture == nullptr && carried == nullptr && groups_rows(batch.longest(), outputs)) {
    const Problem grouped = grouped_problem(batch.longest());
    return forward_batch<Sum>(Batch(grouped), grouped_outputs(outputs, batch.longest().group_size()), nullptr, context);
  }
  const bool out = outputs.out.data != nullptr, weights = outputs.weights.data != nullptr;
  const Wants wants{.rows = out || outputs.lse.data != nullptr,
      .weights = weights,
      .captures = capture != nullptr,
      .kept_weights = out && weights && outputs.kind != WeightsKind::kScores,
      .capture_bytes = capture == nullptr ? 0 : capture->worker_bytes(),
      .carried_keys = carried == nullptr ? -1 : carried->rows.k_end - carried->rows.k_begin};
  Schedule schedule(batch);
  const ScratchLease blocks = borrow_scratch(context, line_bytes<Block>(schedule.most_blocks(wants)));
  schedule.make(wants, context.threads(), blocks.as<Block>());
  if (schedule.items == 0) return;
  const std::size_t capture_bytes = capture == nullptr ? 0 : capture->shared_bytes();
  const ScratchLease shared = borrow_scratch(context, schedule.state_bytes + capture_bytes);
  if (capture != nullptr) capture->begin(shared.data() + schedule.state_bytes);
  ForwardDriver<Sum> driver(schedule, outputs, capture, carried, context.threads(), shared.data());
  run_items(context, {schedule.items, schedule.flops, schedule.worker_bytes},
      [&driver](Index item, std::byte* scratch) { driver.run(item, scratch); });
}

template void forward_batch(const Batch&, const Outputs&, CaptureJob<float>*, Context&, const CarriedTiles<float>*);
template void forward_batch(const Batch&, const Outputs&, CaptureJob<double>*, Context&, const CarriedTiles<double>*);

}  // namespace qkv::inline v0
