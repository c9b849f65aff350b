// Tiles that masks make attention skip, counted in plans. That it leaves no trace in the bits: relations_test.cc.
#include <gtest/gtest.h>

#include "dispatch/kernels.h"
#include "qkv/attention.h"
#include "support/cases/mask_algebra.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

constexpr Index kBatch = 2, kHeads = 2, kQueries = 150, kKeys = 700, kDim = 16;

TEST(MaskTiles, PlansCountThem) {
  const Tensor<float> q({kBatch, kHeads, kQueries, kDim}), k({kBatch, kHeads, kKeys, kDim});
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const MaskCase made = MaskMaker(kBatch, kHeads, kQueries, kKeys, seed % 2 == 0, random).expression(2);
    const Mask& mask = made.mask;
    SCOPED_TRACE(mask.describe());
    Tensor<std::uint8_t> drawn({kBatch, kHeads, kQueries, kKeys});
    mask_to_dense(mask, drawn);
    const View<const std::uint8_t, 4> pairs = drawn;
    for_each_isa(1, [&](Context& context) {
      const AttentionPlan plan = attention_plan(q, k, k, {.mask = mask}, context);
      const Index strip = kernels_of<float>(context.isa()).strip;
      Index full = 0, partial = 0, empty = 0, kept = 0;
      for (Index plane = 0; plane < kBatch * kHeads; ++plane) {
        for (Index i0 = 0; i0 < kQueries; i0 += strip) {
          for (Index j0 = 0; j0 < kKeys; j0 += plan.key_tile) {
            const Index i_end = std::min(i0 + strip, kQueries), j_end = std::min(j0 + plan.key_tile, kKeys);
            Index live = 0;
            for (Index i = i0; i < i_end; ++i) {
              for (Index j = j0; j < j_end; ++j) live += pairs(plane / kHeads, plane % kHeads, i, j);
            }
            kept += live;
            ++(live == 0 ? empty : live == (i_end - i0) * (j_end - j0) ? full : partial);
          }
        }
      }
      EXPECT_EQ(plan.full_tiles, full);
      EXPECT_EQ(plan.partial_tiles, partial);
      EXPECT_EQ(plan.skipped_tiles, empty);
      EXPECT_EQ(plan.forward_flops, static_cast<double>(kept * 4 * kDim));
    });
  }
}

}  // namespace
}  // namespace qkv::test
