// Builders of block maps: Longformer, BigBird, and the blocks in which a mask keeps anything. Not: what a call does with them
// (mask_blocks.cc).
#include "qkv/block_map.h"

#include <algorithm>
#include <array>

#include "attention/mask_leaves.h"
#include "attention/mask_node.h"
#include "core/callback_error.h"
#include "core/check.h"
#include "core/random.h"

namespace qkv {
inline namespace v0 {
namespace {

Index blocks_of(Index length, Index block) { return (length + block - 1) / block; }

/// A map for `length` queries and keys whose rows are still to come.
BlockMap square_map(const char* function, Index length, Index block, Index window_blocks, Index num_heads) {
  check<OptionError>(length >= 0 && length < kFar && block >= 1 && window_blocks >= 0 && num_heads >= 1, function,
                     "length and window_blocks must be counts, block and num_heads at least 1: got length ", length, ", block ",
                     block, ", window_blocks ", window_blocks, ", num_heads ", num_heads);
  check_block(block, block, function);
  BlockMap map;
  map.q_block = map.kv_block = block;
  map.q_blocks = map.kv_blocks = blocks_of(length, block);
  map.num_heads = num_heads;
  return map;
}

/// Ends the row that `live` marks.
void add_row(const std::vector<bool>& live, BlockMap& map) {
  for (std::size_t column = 0; column < live.size(); ++column) {
    if (live[column]) map.columns.push_back(static_cast<Index>(column));
  }
  map.row_begin.push_back(map.live_blocks());
}

std::vector<bool> window_row(Index row, Index window_blocks, Index blocks) {
  std::vector<bool> live(static_cast<std::size_t>(blocks));
  const Index reach = std::min(window_blocks, blocks);
  for (Index c = std::max<Index>(0, row - reach); c < std::min(blocks, row + reach + 1); ++c) {
    live[static_cast<std::size_t>(c)] = true;
  }
  return live;
}

}  // namespace

double BlockMap::density() const {
  const double all = static_cast<double>(batch) * static_cast<double>(num_heads) * static_cast<double>(q_blocks) *
                     static_cast<double>(kv_blocks);
  return all == 0 ? 0 : static_cast<double>(live_blocks()) / all;
}

BlockMap block_map(const LongformerBlocks& pattern) {
  constexpr const char* function = "block_map(LongformerBlocks)";
  BlockMap map = square_map(function, pattern.length, pattern.block, pattern.window_blocks, 1);
  std::vector<bool> global(static_cast<std::size_t>(map.kv_blocks));
  for (const Index block : pattern.global_blocks) {
    check<OptionError>(block >= 0 && block < map.kv_blocks, function, "a global block must be below ", map.kv_blocks, ": got ",
                       block);
    global[static_cast<std::size_t>(block)] = true;
  }
  for (Index row = 0; row < map.q_blocks; ++row) {
    std::vector<bool> live = window_row(row, pattern.window_blocks, map.kv_blocks);
    const bool whole = global[static_cast<std::size_t>(row)];
    for (std::size_t column = 0; column < live.size(); ++column) live[column] = live[column] || whole || global[column];
    add_row(live, map);
  }
  return map;
}

BlockMap block_map(const BigBirdBlocks& pattern) {
  constexpr const char* function = "block_map(BigBirdBlocks)";
  BlockMap map = square_map(function, pattern.length, pattern.block, pattern.window_blocks, pattern.num_heads);
  check<OptionError>(pattern.global_blocks >= 0 && pattern.random_blocks >= 0, function,
                     "global_blocks and random_blocks must be counts: got ", pattern.global_blocks, ", ",
                     pattern.random_blocks);
  for (Index head = 0; head < map.num_heads; ++head) {
    Random random(pattern.seed, static_cast<std::uint32_t>(head));
    for (Index row = 0; row < map.q_blocks; ++row) {
      std::vector<bool> live = window_row(row, pattern.window_blocks, map.kv_blocks);
      for (Index column = 0; column < map.kv_blocks; ++column) {
        if (row < pattern.global_blocks || column < pattern.global_blocks) live[static_cast<std::size_t>(column)] = true;
      }
      std::vector<std::size_t> others;
      for (std::size_t column = 0; column < live.size(); ++column) {
        if (!live[column]) others.push_back(column);
      }
      for (Index n = 0; n < pattern.random_blocks && !others.empty(); ++n) {  // each drawn once
        const auto pick = static_cast<std::size_t>(random.below(others.size()));
        live[others[pick]] = true;
        others[pick] = others.back();
        others.pop_back();
      }
      add_row(live, map);
    }
  }
  return map;
}

BlockMap block_map(const Mask& mask, const BlockMapSizes& sizes) {
  constexpr const char* function = "block_map";
  check_block(sizes.q_block, sizes.kv_block, function);
  check<OptionError>(sizes.batch >= 1 && sizes.num_heads >= 1 && sizes.q_len >= 0 && sizes.kv_len >= 0, function,
                     "sizes must be counts: got ", sizes.batch, " x ", sizes.num_heads, " x ", sizes.q_len, " x ",
                     sizes.kv_len);
  const BoundMask bound{mask.node(), {sizes.batch, sizes.num_heads, sizes.q_len, sizes.kv_len}};
  check_mask(mask, bound.extent, function);
  BlockMap map;
  map.q_block = sizes.q_block;
  map.kv_block = sizes.kv_block;
  map.q_blocks = blocks_of(sizes.q_len, sizes.q_block);
  map.kv_blocks = blocks_of(sizes.kv_len, sizes.kv_block);
  map.batch = sizes.batch;
  map.num_heads = sizes.num_heads;
  constexpr Index lanes = 32, keys = 128;
  std::array<std::uint32_t, keys> words;
  for (Index plane = 0; plane < sizes.batch * sizes.num_heads; ++plane) {
    const Index b = plane / sizes.num_heads, h = plane % sizes.num_heads;
    for (Index row = 0; row < map.q_blocks; ++row) {
      std::vector<bool> live(static_cast<std::size_t>(map.kv_blocks));
      const Index row_end = std::min((row + 1) * sizes.q_block, sizes.q_len);
      for (Index i0 = row * sizes.q_block; i0 < row_end; i0 += lanes) {
        const Index ni = std::min(lanes, row_end - i0);
        for (Index j0 = 0; (j0 = mask_next_key(&bound, b, h, i0, ni, j0)) < sizes.kv_len;) {
          const Index column = j0 / sizes.kv_block, column_end = std::min((column + 1) * sizes.kv_block, sizes.kv_len);
          const Index nj = std::min(keys, column_end - j0);
          const bool known = live[static_cast<std::size_t>(column)];
          const bool any = known || mask_tile(&bound, b, h, i0, ni, j0, nj, words.data()) != kTileEmpty;
          live[static_cast<std::size_t>(column)] = any;
          j0 = any ? column_end : j0 + nj;
        }
        rethrow_callback_error();
      }
      add_row(live, map);
    }
  }
  return map;
}

}  // namespace v0
}  // namespace qkv
