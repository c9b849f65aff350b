// attention_plan: what a call would do, without doing it; its tiles are counted by asking the mask.
#include <algorithm>
#include <array>

#include "attention/backward/backward_driver.h"
#include "attention/plan/schedule.h"
#include "core/cpu.h"
#include "core/threads/callback_error.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kMaxKeyTile = 256;

double live_pairs_of_tile(const TileMask& mask, Index i0, Index ni, Index j0, Index nj, AttentionPlan& plan) {
  std::array<std::uint32_t, kMaxKeyTile> lane_masks{};
  const int verdict =
      mask.tile == nullptr ? kTileFull : mask.tile(mask.mask, mask.batch, mask.head, i0, ni, j0, nj, lane_masks.data());
  if (verdict == kTileFull) {
    ++plan.full_tiles;
    return static_cast<double>(ni * nj);
  }
  if (verdict == kTileEmpty) {
    ++plan.skipped_tiles;
    return 0;
  }
  const std::uint32_t lanes = bit_range(0, ni);
  double pairs = 0;
  for (Index j = 0; j < nj; ++j) pairs += __builtin_popcount(lane_masks[static_cast<std::size_t>(j)] & lanes);
  ++(pairs > 0 ? plan.partial_tiles : plan.skipped_tiles);
  return pairs;
}

/// Counts one strip of queries against all chunks of keys; chunks in which nothing can be live are skipped.
double live_pairs_of_strip(const TileMask& mask, Index i0, Index ni, Index tile, Index kv_len, AttentionPlan& plan) {
  const Index chunks = (kv_len + tile - 1) / tile;
  double pairs = 0;
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    if (mask.next_key != nullptr) {
      const Index next = mask.next_key(mask.mask, mask.batch, mask.head, i0, ni, chunk * tile);
      const Index live = next < kv_len ? next / tile : chunks;
      plan.skipped_tiles += live - chunk;
      chunk = live;
      if (chunk == chunks) break;
    }
    pairs += live_pairs_of_tile(mask, i0, ni, chunk * tile, std::min(tile, kv_len - chunk * tile), plan);
  }
  return pairs;
}

/// Adds the tiles of all heads of sequence b, query strips x chunks of `key_tile` keys, and the flops of their kept
/// pairs. Throws what a callback throws.
void add_tiles(const Problem& p, Index b, Index key_tile, AttentionPlan& plan) {
  const Index strip = p.strip;
  double pairs = 0;
  for (Index h = 0; h < p.num_heads; ++h) {
    const TileMask mask = p.tile_mask(b, h);
    const Index end = p.first_query + p.q_len;
    for (Index i0 = p.first_query; i0 < end; i0 += strip) {
      pairs += live_pairs_of_strip(mask, i0, std::min(strip, end - i0), key_tile, p.length(b), plan);
    }
    rethrow_callback_error();
  }
  plan.forward_flops += 2.0 * static_cast<double>(p.head_dim + p.v_head_dim) * pairs;
  plan.backward_flops += 2.0 * static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim) * pairs;
}

/// Says where the call would run, and why not elsewhere.
void add_machine(const Context& context, AttentionPlan& plan) {
  plan.isa = context.isa();
  plan.threads = context.threads();
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (candidate.isa == plan.isa) continue;
    std::string reason = candidate.obstacle;
    if (reason.empty()) {
      reason = candidate.isa < plan.isa ? "slower than " + std::string(isa_name(plan.isa))
                                        : "the context was made without it";
    }
    plan.skipped.push_back(std::string(isa_name(candidate.isa)) + ": " + reason);
  }
}

/// Says why the other algorithm was not chosen.
void add_reasons(const Batch& batch, Index tiled, Index decoded, AttentionPlan& plan) {
  const std::string row_limit = std::to_string(kDecodeRowLimit), key_limit = std::to_string(kDecodeMinKeys);
  if (batch.longest().invariant) {
    plan.skipped.push_back("decode: sums a row otherwise than the tiled kernel, and the bits are to be invariant");
    return;
  }
  if (batch.is_ragged()) {
    const std::string few =
        "at most " + row_limit + " queries (Tq * H/Hkv) to a key/value head and at least " + key_limit + " keys";
    if (tiled > 0) plan.skipped.push_back("decode: " + std::to_string(tiled) + " sequences do not have " + few);
    if (decoded > 0) plan.skipped.push_back("tiled: " + std::to_string(decoded) + " sequences have " + few);
    return;
  }
  const Problem& p = batch.longest();
  const Index rows = p.queries * p.group_size();
  const std::string queries = std::to_string(rows) + " queries (Tq * H/Hkv) to a key/value head";
  if (tiled > 0) {
    const bool many = rows > kDecodeRowLimit;
    plan.skipped.push_back("decode: " + (many ? queries + ", more than " + row_limit
                                              : std::to_string(p.kv_len) + " keys, less than " + key_limit));
  }
  if (decoded > 0) {
    plan.skipped.push_back(
        "tiled: reads K and V once for each query head; here are " + queries + ", decode takes " + row_limit);
  }
}

void add_forward(const Batch& batch, int threads, AttentionPlan& plan) {
  const Wants wants;
  Schedule schedule(batch);
  std::vector<Block> memory(static_cast<std::size_t>(schedule.most_blocks(wants)));
  schedule.make(wants, threads, memory.data());
  plan.work_items = schedule.items;
  plan.forward_scratch_bytes = schedule.worker_bytes;
  plan.forward_shared_bytes =
      schedule.state_bytes + line_bytes<Block>(schedule.most_blocks(wants)) + batch.shared_bytes();
  plan.query_tile = batch.longest().query_tile;
  plan.key_tile = batch.longest().key_tile;
  Index tiled = 0, decoded = 0;
  bool listed = false;
  for (const Block& block : schedule.blocks) {  // decode comes last
    const Problem& p = batch.part(block.part);
    Index key_tile = p.key_tile;
    listed |= block.how == How::kLists;
    if (block.how != How::kTiles) {
      key_tile = block.keys.chunk;
      if (tiled == 0) {
        plan.query_tile = std::max(decoded == 0 ? 0 : plan.query_tile, listed ? 1 : p.q_len);
        plan.key_tile = key_tile;
      }
      ++decoded;
    } else if (block.items > 0 && p.kv_len > 0) {
      ++tiled;
    }
    const Index first = batch.first_sequence(block.part);
    for (Index b = first; b < first + batch.num_sequences(); ++b) add_tiles(p, b, key_tile, plan);
  }
  if (listed) {
    plan.algorithm = "lists";
    plan.skipped.push_back("tiled and decode: read all keys; the lists hold few of them");
    return;
  }
  plan.algorithm = tiled == 0 ? decoded == 0 ? "none" : "decode" : decoded == 0 ? "tiled" : "tiled and decode";
  add_reasons(batch, tiled, decoded, plan);
}

/// The part of a plan that all forms of a call share.
AttentionPlan plan_batch(const Batch& batch, const AttentionOptions& options, const Context& context) {
  AttentionPlan plan;
  const Problem& p = batch.longest();
  if (!batch.is_ragged() && groups_rows(p, Outputs())) {
    const Problem grouped = grouped_problem(p);
    add_forward(Batch(grouped), context.threads(), plan);
  } else {
    add_forward(batch, context.threads(), plan);
  }
  add_machine(context, plan);
  plan.position_bias_bytes = PositionVectors::bytes(options.position_bias, p.q.type, p.queries, p.kv_len);
  plan.mask_bytes = DenseSummaries::bytes(options.mask.node());
  return plan;
}

}  // namespace

namespace detail {

AttentionPlan plan(
    const AnyView& q, const AnyView& k, const AnyView& v, const AttentionOptions& options, Context& context) {
  CallMemory memory;
  Problem p = make_dense_problem("attention_plan", q, {k, v}, options, context, memory);
  AttentionPlan plan = plan_batch(Batch(p), options, context);
  p.use_sum_tiles();
  plan_backward(Batch(p), context, plan);
  return plan;
}

AttentionPlan plan(const AnyView& q, const KeyValue& kv, const AttentionOptions& options, Context& context) {
  CallMemory memory;
  const Problem p = make_cached_problem("attention_plan", q, kv, options, context, memory);
  AttentionPlan plan = plan_batch(Batch(p), options, context);
  plan.backward_flops = 0;
  return plan;
}

AttentionPlan varlen_plan(const AnyView& q, const AnyView& k, const AnyView& v, const RaggedOffsets& offsets,
    const AttentionOptions& options, Context& context) {
  RaggedCall r("attention_varlen_plan", q, k, v, offsets, options, context);
  AttentionPlan plan = plan_batch(Batch(r), options, context);
  r.use_sum_tiles();
  plan_backward(Batch(r), context, plan);
  return plan;
}

}  // namespace detail
}  // namespace qkv::inline v0
