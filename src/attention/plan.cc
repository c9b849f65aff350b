// What a call would do, without doing it: tiles counted by asking the mask, memory as the kernels state it.
#include <algorithm>
#include <array>

#include "attention/problem.h"
#include "dispatch/cpu.h"

namespace qkv {
inline namespace v0 {
namespace {

constexpr Index kMaxKeyTile = 256;

template <class T>
double live_pairs_of_tile(const Problem<T>& p, Index b, Index h, Index i0, Index ni, Index j0, Index nj, AttentionPlan& plan) {
  std::array<std::uint32_t, kMaxKeyTile> words{};
  const int verdict = mask_tile(&p.mask, b, h, i0, ni, j0, nj, words.data());
  if (verdict == kTileFull) {
    ++plan.full_tiles;
    return static_cast<double>(ni * nj);
  }
  if (verdict == kTileEmpty) {
    ++plan.skipped_tiles;
    return 0;
  }
  ++plan.partial_tiles;
  double pairs = 0;
  for (Index j = 0; j < nj; ++j) pairs += __builtin_popcount(words[static_cast<std::size_t>(j)]);
  return pairs;
}

template <class T>
AttentionPlan plan_of(const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                      const AttentionOptions& options, const Context& context) {
  const Problem<T> p = make_problem("attention_plan", q, k, v, options, context);
  AttentionPlan plan;
  plan.isa = context.isa();
  plan.threads = context.threads();
  plan.query_tile = p.query_tile;
  plan.key_tile = p.key_tile;
  plan.work_items = p.batch * p.num_heads * p.query_tiles();
  const bool nothing = plan.work_items == 0 || p.kv_len == 0;
  plan.algorithm = nothing ? "none" : "tiled";
  for (const IsaCandidate& candidate : isa_candidates()) {
    if (candidate.isa == plan.isa) continue;
    std::string reason = candidate.obstacle;
    if (reason.empty()) {
      reason = candidate.isa < plan.isa ? "slower than " + std::string(isa_name(plan.isa)) : "the context was made without it";
    }
    plan.skipped.push_back(std::string(isa_name(candidate.isa)) + ": " + reason);
  }
  double pairs = 0;
  const Index strip = p.kernels->strip;
  for (Index b = 0; b < p.batch; ++b) {
    for (Index h = 0; h < p.num_heads; ++h) {
      for (Index i0 = 0; i0 < p.q_len; i0 += strip) {
        const Index ni = std::min(strip, p.q_len - i0);
        for (Index j0 = 0; j0 < p.kv_len; j0 += p.key_tile) {
          pairs += live_pairs_of_tile(p, b, h, i0, ni, j0, std::min(p.key_tile, p.kv_len - j0), plan);
        }
      }
    }
  }
  plan.forward_flops = 2.0 * static_cast<double>(p.head_dim + p.v_head_dim) * pairs;
  plan.backward_flops = 2.0 * static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim) * pairs;
  plan.forward_scratch_bytes = p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim);
  plan.backward_scratch_bytes = p.kernels->backward_scratch_bytes(p.head_dim, p.v_head_dim);
  plan.backward_shared_bytes =
      static_cast<std::size_t>(p.batch * p.num_heads) *
      (static_cast<std::size_t>(3 * p.q_len) * sizeof(Accumulator<T>) + static_cast<std::size_t>(p.query_tiles()) * 8);
  return plan;
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                       \
  AttentionPlan attention_plan(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, const AttentionOptions& options, \
                               Context& context) {                                                                          \
    return plan_of<T>(q, k, v, options, context);                                                                           \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
QKV_DEFINE(BFloat16)
QKV_DEFINE(Float16)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
