// How a call asks a mask: key by key, tile by tile, or for the positions that can meet.
#pragma once

#include <cstdint>
#include <string>

#include "attention/mask/shown_keys.h"

namespace qkv::inline v0 {

/// Throws ShapeError or OptionError if the mask does not fit the sizes.
void check_mask(const Mask& mask, const MaskExtent& extent, const char* function);

/// "causal(bottom-right) & (window(255, 0) | first(4))"
std::string text_of(const Mask::Node& node);

/// A mask together with the sizes of one call. Refers to both; make it for the call.
struct BoundMask {
  const Mask::Node* node;  // null: everything is kept
  MaskExtent extent;
  // of a call on a cache, whose sequences have a Tk of their own, to which Align refers
  const ShownKeys* shown = nullptr;

  /// Whether every query attends every key.
  bool keeps_all() const { return node == nullptr && (shown == nullptr || shown->all()); }
  /// As sequence b sees it.
  MaskExtent extent_of(Index b) const {
    MaskExtent of_sequence = extent;
    if (shown != nullptr) of_sequence.kv_len = shown->kv_len(b);
    return of_sequence;
  }
};

/// keep(b, h, i, j).
bool mask_keeps(const BoundMask& mask, Index b, Index h, Index i, Index j);
/// Whether one head may keep what another drops.
bool mask_differs_by_head(const BoundMask& mask);

/// kTileFull and kTileEmpty are promises, kTilePartial is none. Reads no element.
int mask_verdict(const BoundMask& mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj);

/// Functions behind the kernels' TileMask; `mask` points at a BoundMask. The verdict is exact, from lane masks where
/// parts are unsure.
int mask_tile(const void* mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* lane_masks);
/// Of all heads.
void mask_key_range(const void* mask, Index b, Index h, Index i0, Index ni, Index* begin, Index* end);
/// The first key from `key` on that any of the queries might attend in this head; kv_len: none.
Index mask_next_key(const void* mask, Index b, Index h, Index i0, Index ni, Index key);
/// A mask that is the same for all heads of a group, of rows [head][query]: row r is query r % q_len. At most 32 rows.
struct GroupMask {
  const BoundMask* mask;  // null: none
  Index q_len;
};
/// The functions above for such rows; h: any head of the group.
TileMask tile_mask_of(const GroupMask& mask, Index b, Index h);
/// A mask of which only the queries `rows` attend anything: not those that a call added to its own (plan/part_rows.h).
struct PartMask {
  const BoundMask* mask;  // null: none
  Positions rows;
};
TileMask tile_mask_of(const PartMask& mask, Index b, Index h);

/// Whether any of queries [i0, i0 + ni) might attend any of keys [j0, j0 + nj), conservatively.
bool mask_meets(const BoundMask& mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj);

}  // namespace qkv::inline v0
