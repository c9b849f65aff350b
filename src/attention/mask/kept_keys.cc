// By verdicts on tiles: one that is all kept or all dropped is counted whole, others are halved until their bits are counted.
#include "attention/mask/kept_keys.h"

#include "attention/mask/node.h"
#include "core/check.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kLanes = 32, kKeys = 128;  // a tile whose bits are read

struct Counter {
  BoundMask mask;
  std::vector<Index> changes;  // of the count, from each query to the next

  void count(Index i0, Index i1, Index j0, Index j1) {
    if (i0 >= i1 || j0 >= j1) return;
    const int answer = mask_verdict(mask, 0, 0, i0, i1 - i0, j0, j1 - j0);
    if (answer == kTileEmpty) return;
    if (answer == kTileFull) return add(i0, i1, j1 - j0);
    if (i1 - i0 > kLanes && (i1 - i0) * (kKeys / kLanes) >= j1 - j0) {
      const Index middle = i0 + (i1 - i0 + 2 * kLanes - 1) / (2 * kLanes) * kLanes;
      count(i0, middle, j0, j1);
      return count(middle, i1, j0, j1);
    }
    if (j1 - j0 > kKeys) {
      const Index middle = j0 + (j1 - j0 + 2 * kKeys - 1) / (2 * kKeys) * kKeys;
      count(i0, i1, j0, middle);
      return count(i0, i1, middle, j1);
    }
    std::uint32_t lane_masks[kKeys];
    const int bits = mask_tile(&mask, 0, 0, i0, i1 - i0, j0, j1 - j0, lane_masks);
    if (bits == kTileFull) return add(i0, i1, j1 - j0);
    if (bits == kTileEmpty) return;
    for (Index i = i0; i < i1; ++i) {
      Index kept = 0;
      for (Index j = 0; j < j1 - j0; ++j) kept += lane_masks[j] >> (i - i0) & 1U;
      add(i, i + 1, kept);
    }
  }
  void add(Index begin, Index end, Index keys) {
    changes[static_cast<std::size_t>(begin)] += keys;
    changes[static_cast<std::size_t>(end)] -= keys;
  }
};

}  // namespace

std::vector<Index> mask_kept_keys(const Mask& mask, Index q_len, Index kv_len) {
  Counter counter{{mask.node(), {1, 1, q_len, kv_len}}, std::vector<Index>(static_cast<std::size_t>(q_len) + 1)};
  check_mask(mask, counter.mask.extent, "mask_kept_keys");
  counter.count(0, q_len, 0, kv_len);
  rethrow_callback_error();
  std::vector<Index> kept(static_cast<std::size_t>(q_len));
  Index keys = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = keys += counter.changes[i];
  return kept;
}

}  // namespace qkv::inline v0
