// What masks make tiled attention skip: counted in plans, and without a trace in the bits. Not: which pairs are kept
// (mask_algebra_test.cc).
#include <gtest/gtest.h>

#include <cstring>

#include "dispatch/kernels.h"
#include "qkv/attention.h"
#include "support/cases/mask_algebra.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

constexpr Index kBatch = 2, kHeads = 2, kQueries = 150, kKeys = 700, kDim = 16;

Tensor<float> drawn(Random& random, Index length) {
  Tensor<float> tensor({kBatch, kHeads, length, kDim});
  for (float& x : tensor.span()) x = static_cast<float>(random.symmetric());
  return tensor;
}

/// A mask from the algebra, and the same pairs as a dense one.
struct Twice {
  MaskCase made;
  Tensor<std::uint8_t> pairs{kBatch, kHeads, kQueries, kKeys};
  Mask dense;

  explicit Twice(std::uint64_t seed) {
    Random random(seed);
    made = MaskMaker(kBatch, kHeads, kQueries, kKeys, seed % 2 == 0, random).expression(2);
    mask_to_dense(made.mask, pairs);
    dense = Mask::keep(View<const std::uint8_t, 4>(pairs));
  }
};

TEST(MaskTiles, PlansCountThem) {
  const Tensor<float> q({kBatch, kHeads, kQueries, kDim}), k({kBatch, kHeads, kKeys, kDim});
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Twice mask(seed);
    SCOPED_TRACE(mask.made.mask.describe());
    const View<const std::uint8_t, 4> pairs = mask.pairs;
    for_each_isa(1, [&](Context& context) {
      const AttentionPlan plan = attention_plan(q, k, k, {.mask = mask.made.mask}, context);
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

template <class T>
bool same(const Tensor<T>& a, const Tensor<T>& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(T)) == 0;
}

TEST(MaskTiles, WhatIsSkippedLeavesNoTraceInTheBits) {
  struct Outputs {
    Tensor<float> out{kBatch, kHeads, kQueries, kDim}, lse{kBatch, kHeads, kQueries};
    Tensor<float> weights{kBatch, kHeads, kQueries, kKeys};
    Tensor<float> dq{kBatch, kHeads, kQueries, kDim}, dk{kBatch, kHeads, kKeys, kDim}, dv{kBatch, kHeads, kKeys, kDim};
  };
  Random random(5);
  const Tensor<float> q = drawn(random, kQueries), k = drawn(random, kKeys), v = drawn(random, kKeys),
                      dout = drawn(random, kQueries);
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const Twice mask(seed);
    SCOPED_TRACE(mask.made.mask.describe());
    for_each_isa(3, [&](Context& context) {
      const auto compute = [&](const Mask& one) {
        Outputs o;
        const AttentionOptions options{.mask = one};
        attention_forward(q, k, v, {.out = o.out, .lse = o.lse, .weights = o.weights}, options, context);
        attention_backward(q, k, v, o.out, o.lse, dout, {.dq = o.dq, .dk = o.dk, .dv = o.dv}, options, context);
        attention_forward(q, k, v, {.out = o.out, .lse = o.lse}, options, context);
        return o;
      };
      const Outputs a = compute(mask.made.mask), b = compute(mask.dense);
      EXPECT_TRUE(same(a.out, b.out) && same(a.lse, b.lse) && same(a.weights, b.weights));
      EXPECT_TRUE(same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv));
    });
  }
}

}  // namespace
}  // namespace qkv::test
