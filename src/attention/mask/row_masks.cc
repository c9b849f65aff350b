// Masks whose rows are not the queries that a mask knows: those of all heads of a group, a call's own among added ones.
#include <algorithm>

#include "attention/mask/node.h"
#include "attention/mask/part.h"

namespace qkv::inline v0 {

TileMask tile_mask_of(const GroupMask& group, Index b, Index h) {
  constexpr auto tile = [](const void* bound, Index batch, Index head, Index i0, Index ni, Index j0, Index nj,
                            std::uint32_t* lane_masks) {
    const GroupMask& rows = *static_cast<const GroupMask*>(bound);
    const int answer = mask_tile(rows.mask, batch, head, 0, rows.q_len, j0, nj, lane_masks);
    if (answer != kTilePartial) return answer;
    std::uint64_t every_head = 0;  // a bit where a head's rows begin
    for (Index row = 0; row < i0 + ni; row += rows.q_len) every_head |= std::uint64_t{1} << row;
    const std::uint32_t queries = bit_range(0, rows.q_len), lanes = bit_range(0, ni);
    for (Index j = 0; j < nj; ++j)
      lane_masks[j] = static_cast<std::uint32_t>((lane_masks[j] & queries) * every_head >> i0) & lanes;
    return answer;
  };
  constexpr auto key_range = [](const void* bound, Index batch, Index head, Index, Index, Index* begin, Index* end) {
    const GroupMask& rows = *static_cast<const GroupMask*>(bound);
    mask_key_range(rows.mask, batch, head, 0, rows.q_len, begin, end);
  };
  constexpr auto next_key = [](const void* bound, Index batch, Index head, Index, Index, Index key) {
    const GroupMask& rows = *static_cast<const GroupMask*>(bound);
    return mask_next_key(rows.mask, batch, head, 0, rows.q_len, key);
  };
  return {tile, key_range, &group, b, h, next_key};
}

TileMask tile_mask_of(const PartMask& part, Index b, Index h) {
  static constexpr auto own = [](const PartMask& mask, Index i0, Index ni) -> Positions {
    return {std::max(i0, mask.rows.begin), std::min(i0 + ni, mask.rows.end)};
  };
  constexpr auto tile = [](const void* bound, Index batch, Index head, Index i0, Index ni, Index j0, Index nj,
                            std::uint32_t* lane_masks) -> int {
    const PartMask& rows = *static_cast<const PartMask*>(bound);
    const Positions some = own(rows, i0, ni);
    if (some.begin >= some.end) return kTileEmpty;
    const int answer =
        rows.mask->keeps_all() ? kTileFull : mask_tile(rows.mask, batch, head, i0, ni, j0, nj, lane_masks);
    if (answer == kTileEmpty || some.end - some.begin == ni) return answer;
    if (answer == kTileFull) std::fill_n(lane_masks, nj, ~std::uint32_t{0});
    const std::uint32_t lanes = bit_range(some.begin - i0, some.end - i0);
    std::uint32_t any = 0;
    for (Index j = 0; j < nj; ++j) any |= lane_masks[j] &= lanes;
    return any == 0 ? kTileEmpty : kTilePartial;
  };
  constexpr auto key_range = [](const void* bound, Index batch, Index head, Index i0, Index ni, Index* begin,
                                 Index* end) {
    const PartMask& rows = *static_cast<const PartMask*>(bound);
    const Positions some = own(rows, i0, ni);
    *begin = *end = 0;
    if (some.begin < some.end) mask_key_range(rows.mask, batch, head, some.begin, some.end - some.begin, begin, end);
  };
  constexpr auto next_key = [](const void* bound, Index batch, Index head, Index i0, Index ni, Index key) {
    return mask_next_key(static_cast<const PartMask*>(bound)->mask, batch, head, i0, ni, key);
  };
  return {tile, key_range, &part, b, h, next_key};
}

}  // namespace qkv::inline v0
