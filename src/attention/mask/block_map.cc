// The blocks in which a mask keeps anything.
#include "qkv/block_map.h"

#include <algorithm>
#include <array>

#include "attention/mask/node.h"
#include "core/check.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

Index block_count(Index length, Index block) { return (length + block - 1) / block; }

/// The row being filled. Its cost follows the blocks it lists, not the blocks there are: blocks may be single tokens.
class Row {
 public:
  explicit Row(BlockMap& map) : map_(map), live_(static_cast<std::size_t>(map.kv_blocks)) {}

  bool has(Index column) const { return live_[static_cast<std::size_t>(column)]; }
  void add(Index column) {
    if (has(column)) return;
    live_[static_cast<std::size_t>(column)] = true;
    map_.columns.push_back(column);
  }
  /// The next columns belong to the next row.
  void end() {
    const auto first = map_.columns.begin() + static_cast<std::ptrdiff_t>(map_.row_begin.back());
    if (!std::is_sorted(first, map_.columns.end())) std::sort(first, map_.columns.end());
    for (auto column = first; column != map_.columns.end(); ++column) live_[static_cast<std::size_t>(*column)] = false;
    map_.row_begin.push_back(map_.live_blocks());
  }

 private:
  BlockMap& map_;
  std::vector<bool> live_;  // [kv_blocks]
};

}  // namespace

double BlockMap::density() const {
  const double all = static_cast<double>(batch) * static_cast<double>(num_heads) * static_cast<double>(q_blocks) *
                     static_cast<double>(kv_blocks);
  return all == 0 ? 0 : static_cast<double>(live_blocks()) / all;
}

BlockMap block_map(const Mask& mask, const BlockMapSizes& sizes) {
  constexpr const char* function = "block_map";
  check_block(sizes.q_block, sizes.kv_block, function);
  check<OptionError>(sizes.batch >= 1 && sizes.num_heads >= 1 && sizes.q_len >= 0 && sizes.kv_len >= 0, function,
      "sizes must be counts: got ", sizes.batch, " x ", sizes.num_heads, " x ", sizes.q_len, " x ", sizes.kv_len);
  const BoundMask bound{mask.node(), {sizes.batch, sizes.num_heads, sizes.q_len, sizes.kv_len}};
  check_mask(mask, bound.extent, function);
  BlockMap map;
  map.q_block = sizes.q_block;
  map.kv_block = sizes.kv_block;
  map.q_blocks = block_count(sizes.q_len, sizes.q_block);
  map.kv_blocks = block_count(sizes.kv_len, sizes.kv_block);
  map.batch = sizes.batch;
  map.num_heads = sizes.num_heads;
  constexpr Index lanes = 32, keys = 128;
  std::array<std::uint32_t, keys> lane_masks;
  Row row(map);
  for (Index plane = 0; plane < sizes.batch * sizes.num_heads; ++plane) {
    const Index b = plane / sizes.num_heads, h = plane % sizes.num_heads;
    for (Index r = 0; r < map.q_blocks; ++r) {
      const Index row_end = std::min((r + 1) * sizes.q_block, sizes.q_len);
      for (Index i0 = r * sizes.q_block; i0 < row_end; i0 += lanes) {
        const Index ni = std::min(lanes, row_end - i0);
        for (Index j0 = 0; (j0 = mask_next_key(&bound, b, h, i0, ni, j0)) < sizes.kv_len;) {
          const Index column = j0 / sizes.kv_block, column_end = std::min((column + 1) * sizes.kv_block, sizes.kv_len);
          const Index nj = std::min(keys, column_end - j0);
          const bool any = row.has(column) || mask_tile(&bound, b, h, i0, ni, j0, nj, lane_masks.data()) != kTileEmpty;
          if (any) row.add(column);
          j0 = any ? column_end : j0 + nj;
        }
        rethrow_callback_error();
      }
      row.end();
    }
  }
  return map;
}

}  // namespace qkv::inline v0
