// Builders of block maps: Longformer, BigBird, and the blocks in which a mask keeps anything.
#include "qkv/block_map.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "attention/mask/node.h"
#include "core/check.h"
#include "core/random.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

Index block_count(Index length, Index block) { return (length + block - 1) / block; }

/// A map for `length` queries and keys that has no rows yet.
BlockMap square_map(const char* function, Index length, Index block, Index window_blocks, Index num_heads) {
  check<OptionError>(length >= 0 && length < kFar && block >= 1 && window_blocks >= 0 && num_heads >= 1, function,
      "length and window_blocks must be counts, block and num_heads at least 1: got length ", length, ", block ", block,
      ", window_blocks ", window_blocks, ", num_heads ", num_heads);
  check_block(block, block, function);
  BlockMap map;
  map.q_block = map.kv_block = block;
  map.q_blocks = map.kv_blocks = block_count(length, block);
  map.num_heads = num_heads;
  return map;
}

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
  void add(Index begin, Index end) {
    for (Index column = begin; column < end; ++column) add(column);
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

/// Columns [begin, end) within `window_blocks` of a row.
struct Reach {
  Index begin, end;

  Reach(Index row, Index window_blocks, Index blocks) {
    const Index reach = std::min(window_blocks, blocks);
    begin = std::max<Index>(0, row - reach);
    end = std::min(blocks, row + reach + 1);
  }
};

/// Draws from [0, count) without repetition, as if a list of all numbers were shuffled from its end backwards; only the
/// slots that draws have moved are stored.
class Draws {
 public:
  Draws(Random& random, Index count) : random_(random), left_(count) {}

  bool any() const { return left_ > 0; }
  Index next() {
    const auto slot = static_cast<Index>(random_.below(static_cast<std::size_t>(left_)));
    const Index drawn = at(slot);
    moved_[slot] = at(--left_);
    return drawn;
  }

 private:
  Index at(Index slot) const {
    const auto found = moved_.find(slot);
    return found == moved_.end() ? slot : found->second;
  }

  Random& random_;
  Index left_;
  std::unordered_map<Index, Index> moved_;
};

}  // namespace

double BlockMap::density() const {
  const double all = static_cast<double>(batch) * static_cast<double>(num_heads) * static_cast<double>(q_blocks) *
                     static_cast<double>(kv_blocks);
  return all == 0 ? 0 : static_cast<double>(live_blocks()) / all;
}

BlockMap block_map(const LongformerBlocks& pattern) {
  constexpr const char* function = "block_map(LongformerBlocks)";
  BlockMap map = square_map(function, pattern.length, pattern.block, pattern.window_blocks, 1);
  std::vector<Index> global = pattern.global_blocks;
  std::sort(global.begin(), global.end());
  for (const Index block : global) {
    check<OptionError>(
        block >= 0 && block < map.kv_blocks, function, "a global block must be below ", map.kv_blocks, ": got ", block);
  }
  Row row(map);
  for (Index r = 0; r < map.q_blocks; ++r) {
    if (std::binary_search(global.begin(), global.end(), r)) {
      row.add(0, map.kv_blocks);
    } else {
      const Reach window(r, pattern.window_blocks, map.kv_blocks);
      row.add(window.begin, window.end);
      for (const Index column : global) row.add(column);
    }
    row.end();
  }
  return map;
}

BlockMap block_map(const BigBirdBlocks& pattern) {
  constexpr const char* function = "block_map(BigBirdBlocks)";
  BlockMap map = square_map(function, pattern.length, pattern.block, pattern.window_blocks, pattern.num_heads);
  check<OptionError>(pattern.global_blocks >= 0 && pattern.random_blocks >= 0, function,
      "global_blocks and random_blocks must be counts: got ", pattern.global_blocks, ", ", pattern.random_blocks);
  const Index blocks = map.kv_blocks, global = std::min(pattern.global_blocks, blocks);
  Row row(map);
  for (Index head = 0; head < map.num_heads; ++head) {
    Random random(pattern.seed, static_cast<std::uint32_t>(head));
    for (Index r = 0; r < map.q_blocks; ++r) {
      const Reach window(r, pattern.window_blocks, blocks);
      row.add(0, r < global ? blocks : global);
      row.add(window.begin, window.end);
      // Not live yet: [global, window.begin) and [max(global, window.end), blocks).
      const Index before = std::max<Index>(0, window.begin - global), after = std::max(global, window.end);
      Draws others(random, r < global ? 0 : before + blocks - after);
      for (Index n = 0; n < pattern.random_blocks && others.any(); ++n) {
        const Index other = others.next();
        row.add(other < before ? global + other : after + other - before);
      }
      row.end();
    }
  }
  return map;
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
