#include "attention/plan/tiles.h"

#include <algorithm>
#include <array>

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

#define QKV_INSTANTIATE(T) template void add_tiles(const Problem<T>&, Index, Index, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
