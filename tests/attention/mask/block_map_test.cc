// Builders of block maps: equal to the patterns written out block by block, and as cheap as what they list. Not: what a
// call does with a map (mask_algebra_test.cc), what is refused (mask_errors_test.cc).
#include "qkv/block_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/random.h"
#include "qkv/mask.h"

namespace qkv::test {
namespace {

/// live(h, row, column) of every block, as a map.
template <class Live> BlockMap written_out(BlockMap map, const Live& live) {
  map.row_begin = {0};
  map.columns.clear();
  for (Index h = 0; h < map.num_heads; ++h) {
    for (Index row = 0; row < map.q_blocks; ++row) {
      for (Index column = 0; column < map.kv_blocks; ++column) {
        if (live(h, row, column)) map.columns.push_back(column);
      }
      map.row_begin.push_back(map.live_blocks());
    }
  }
  return map;
}

void expect_equal(const BlockMap& map, const BlockMap& wanted) {
  EXPECT_EQ(map.row_begin, wanted.row_begin);
  EXPECT_EQ(map.columns, wanted.columns);
}

TEST(BlockMap, LongformerIsItsPatternWrittenOut) {
  for (const Index length : {0, 1, 7, 40, 41}) {
    for (const Index block : {1, 3, 8, 64}) {
      for (const Index window : {Index{0}, Index{1}, Index{5}, Index{1} << 40}) {
        const Index blocks = (length + block - 1) / block;
        std::vector<std::vector<Index>> globals = {{}};
        if (blocks > 0) globals.insert(globals.end(), {{0}, {blocks - 1, 0, blocks / 2, 0}});
        for (const std::vector<Index>& global : globals) {
          SCOPED_TRACE(
              testing::Message() << length << " of " << block << ", window " << window << ", " << global.size());
          const BlockMap map = block_map(
              LongformerBlocks{.length = length, .block = block, .window_blocks = window, .global_blocks = global});
          EXPECT_EQ(map.q_blocks, blocks);
          const auto is_global = [&](Index at) { return std::ranges::find(global, at) != global.end(); };
          expect_equal(map, written_out(map, [&](Index, Index row, Index column) {
            return std::abs(row - column) <= window || is_global(row) || is_global(column);
          }));
        }
      }
    }
  }
}

/// The definition: the blocks that a row does not attend yet are a list; one is drawn and the last takes its place.
TEST(BlockMap, BigBirdDrawsFromTheListOfBlocksThatAreNotLive) {
  for (const Index global : {0, 1, 3, 50}) {
    for (const Index random_blocks : {0, 2, 9, 100}) {
      for (const Index window : {0, 1, 4}) {
        const BigBirdBlocks pattern{.length = 37,
            .block = 2,
            .window_blocks = window,
            .global_blocks = global,
            .random_blocks = random_blocks,
            .num_heads = 2,
            .seed = 77};
        const BlockMap map = block_map(pattern);
        Random random(pattern.seed);
        std::vector<bool> live;
        expect_equal(map, written_out(map, [&](Index h, Index row, Index column) {
          if (row == 0 && column == 0) random = Random(pattern.seed, static_cast<std::uint32_t>(h));
          if (column == 0) {  // a row begins
            live.assign(static_cast<std::size_t>(map.kv_blocks), false);
            std::vector<Index> others;
            for (Index c = 0; c < map.kv_blocks; ++c) {
              const bool fixed = std::abs(row - c) <= window || row < global || c < global;
              live[static_cast<std::size_t>(c)] = fixed;
              if (!fixed) others.push_back(c);
            }
            for (Index n = 0; n < random_blocks && !others.empty(); ++n) {
              Index& drawn = others[static_cast<std::size_t>(random.below(others.size()))];
              live[static_cast<std::size_t>(drawn)] = true;
              drawn = others.back();
              others.pop_back();
            }
          }
          return live[static_cast<std::size_t>(column)];
        }));
      }
    }
  }
}

/// Blocks of one token at a million tokens: walking every pair of blocks, 10^12, would not end today.
TEST(BlockMap, CostsWhatItLists) {
  constexpr Index kMany = Index{1} << 20;
  const BlockMap longformer =
      block_map(LongformerBlocks{.length = kMany, .block = 1, .window_blocks = 1, .global_blocks = {5}});
  // Three of the window and one global column in each row but those beside the global block, and that row in full.
  EXPECT_EQ(longformer.live_blocks(), 4 * (kMany - 3) + 2 * 3 - 2 + kMany);
  const BlockMap bigbird = block_map(BigBirdBlocks{
      .length = kMany / 4, .block = 1, .window_blocks = 1, .global_blocks = 1, .random_blocks = 2, .seed = 3});
  EXPECT_EQ(bigbird.live_blocks(), 6 * (kMany / 4 - 1) - 2 + kMany / 4);
  const Mask mask = Mask::window(1, 1) | Mask::first(1);
  const BlockMap seen = block_map(mask, {.q_len = kMany / 4, .kv_len = kMany / 4, .q_block = 1, .kv_block = 1});
  EXPECT_EQ(seen.live_blocks(), 4 * (kMany / 4) - 2 - 2);
}

}  // namespace
}  // namespace qkv::test
