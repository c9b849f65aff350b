// What a call would do, without doing it: tiles counted by asking the mask. Not: work items and memory (forward_driver.cc,
// backward_driver.cc).
#include "attention/plan.h"

#include <algorithm>
#include <array>

#include "attention/backward/backward_driver.h"
#include "attention/cache/cached_problem.h"
#include "attention/forward/forward_driver.h"
#include "attention/listed.h"
#include "core/cpu.h"
#include "core/threads/callback_error.h"

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

/// Says where the call would run, and why not elsewhere.
void add_machine(const Context& context, AttentionPlan& plan) {
  plan.isa = context.isa();
  plan.threads = context.threads();
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (candidate.isa == plan.isa) continue;
    std::string reason = candidate.obstacle;
    if (reason.empty()) {
      reason = candidate.isa < plan.isa ? "slower than " + std::string(isa_name(plan.isa)) : "the context was made without it";
    }
    plan.skipped.push_back(std::string(isa_name(candidate.isa)) + ": " + reason);
  }
}

/// Names the algorithm of calls that read listed keys alone; their flops are those of the tiles' kept pairs.
void name_lists(AttentionPlan& plan) {
  plan.skipped.push_back(plan.algorithm + ": reads all keys; the lists hold few of them");
  plan.algorithm = "lists";
}

/// The part of a plan that all forms of a call share.
template <class T>
AttentionPlan plan_batch(const Batch<T>& batch, const AttentionOptions& options, const Context& context) {
  AttentionPlan plan;
  plan_forward(batch, plan);
  add_machine(context, plan);
  const Problem<T>& longest = batch.longest();
  plan.position_bias_bytes = PositionVectors<Accumulator<T>>::bytes(options.position_bias, longest.queries, longest.kv_len);
  plan.mask_bytes = DenseSummaries::bytes(options.mask.node());
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                      const AttentionOptions& options, Context& context) {
  CallMemory memory;
  const Problem<T> p = make_problem("attention_plan", q, k, v, options, context, Use::kOutput, &memory);
  const Batch<T> batch(p);
  AttentionPlan plan = plan_batch(batch, options, context);
  plan_backward(batch, context, plan);
  if (Listed<T>(p).applies()) name_lists(plan);
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 4>& q, const KeyValue& kv, const AttentionOptions& options, Context& context) {
  CallMemory memory;
  const Problem<T> p = make_cached_problem("attention_plan", q, kv, options, context, memory);
  AttentionPlan plan = plan_batch(Batch<T>(p), options, context);
  if (Listed<T>(p).applies()) name_lists(plan);
  plan.backward_flops = 0;
  return plan;
}

template <class T>
AttentionPlan plan_of(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v,
                      const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  const RaggedProblem<T> r("attention_varlen_plan", q, k, v, offsets, options, context);
  const Batch<T> batch(r);
  AttentionPlan plan = plan_batch(batch, options, context);
  plan_backward(batch, context, plan);
  return plan;
}

}  // namespace

template <class T>
void add_tiles(const Problem<T>& p, Index b, Index key_tile, AttentionPlan& plan) {
  const Index strip = p.kernels->strip;
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

#define QKV_DEFINE(T)                                                                                                       \
  AttentionPlan attention_plan(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOptions& options, \
                               Context& context) {                                                                          \
    return plan_of<T>(q, k, v, options, context);                                                                           \
  }                                                                                                                         \
  AttentionPlan attention_plan(View<const T, 4> q, const KeyValue& kv, const AttentionOptions& options, Context& context) { \
    return plan_of<T>(q, kv, options, context);                                                                             \
  }                                                                                                                         \
  AttentionPlan attention_varlen_plan(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v,                           \
                                      const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {    \
    return plan_of<T>(q, k, v, offsets, options, context);                                                                  \
  }                                                                                                                         \
  template void add_tiles(const Problem<T>&, Index, Index, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
