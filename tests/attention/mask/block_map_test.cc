// Block maps of masks cost what they list; that they are right: mask_names_test.cc, mask_errors_test.cc.
#include "qkv/block_map.h"

#include <gtest/gtest.h>

#include "qkv/mask.h"

namespace qkv::test {
namespace {

/// Blocks of one token at a million tokens: walking every pair of blocks, 10^12, would not end today.
TEST(BlockMap, CostsWhatItLists) {
  constexpr Index kMany = Index{1} << 20;
  const Mask mask = Mask::window(1, 1) | Mask::first(1);
  const BlockMap map = block_map(mask, {.q_len = kMany / 4, .kv_len = kMany / 4, .q_block = 1, .kv_block = 1});
  EXPECT_EQ(map.live_blocks(), 4 * (kMany / 4) - 2 - 2);
}

}  // namespace
}  // namespace qkv::test
