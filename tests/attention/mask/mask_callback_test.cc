// Callbacks of masks: what they throw reaches the caller, and they are not asked where other parts of a mask decide.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "qkv/attention.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("the callback stops here") {}
};

/// Throws at one pair; a region of several threads must end, nobody waiting for
/// a turn that never comes.
TEST(MaskCallback, WhatACallbackThrowsReachesTheCaller) {
  const Index length = 700;
  for (const Index q_len : {Index{3}, length}) {  // decode, tiles
    const Tensor<float> q({2, 2, q_len, 16}), k({2, 2, length, 16}), dout({2, 2, q_len, 16});
    Tensor<float> out({2, 2, q_len, 16}), lse({2, 2, q_len}), weights({2, 2, q_len, length});
    Tensor<float> dq({2, 2, q_len, 16}), dk({2, 2, length, 16}), dv({2, 2, length, 16});
    const Mask mask = Mask::mask_mod([=](Index b, Index h, Index i, Index j) {
      if (b == 1 && h == 0 && i == q_len / 2 && j == 333) throw Stop();
      return (i + j) % 3 != 0;
    });
    const Mask union_mask = (Mask::first(5) | mask) & Mask::window(400, 400, Align::kTopLeft);
    for (const Mask& each : {mask, union_mask}) {
      const AttentionOptions options{.mask = each};
      for_each_isa(1, [&](Context& context) {
        EXPECT_THROW(attention_forward(q, k, k, {.out = out, .lse = lse}, options, context), Stop);
      });
      for_each_isa(4, [&](Context& context) {
        EXPECT_THROW(attention_forward(q, k, k, {.out = out, .lse = lse}, options, context), Stop);
        EXPECT_THROW(attention_forward(q, k, {}, {.weights = weights}, options, context), Stop);
        EXPECT_THROW(
            attention_backward(q, k, k, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, options, context), Stop);
        EXPECT_THROW(attention_plan(q, k, k, options, context), Stop);
        // The context works on.
        EXPECT_NO_THROW(attention_forward(q, k, k, {.out = out, .lse = lse}, {.mask = Mask::first(9)}, context));
      });
      Tensor<std::uint8_t> dense({2, 2, q_len, length});
      EXPECT_THROW(mask_to_dense(each, dense), Stop);
      EXPECT_THROW(block_map(each, {.batch = 2, .num_heads = 2, .q_len = q_len, .kv_len = length}), Stop);
    }
  }
}

TEST(MaskCallback, ACallbackIsNotAskedWhereOthersDecide) {
  std::atomic<Index> asked = 0;
  const Mask counted = Mask::mask_mod([&](Index, Index, Index, Index) {
    ++asked;
    return true;
  });
  Tensor<std::uint8_t> dense({1, 1, 64, 64});
  const auto times = [&](const Mask& mask) {
    asked = 0;
    mask_to_dense(mask, dense);
    return asked.load();
  };
  EXPECT_EQ(times(counted), 64 * 64);
  EXPECT_EQ(times(counted & Mask::causal()), 64 * 65 / 2);
  EXPECT_EQ(times(counted | Mask::causal()), 64 * 63 / 2);
  EXPECT_EQ(times(counted & Mask::first(3)), 64 * 3);
  EXPECT_EQ(times((counted | Mask::first(60)) & Mask::first(62)), 64 * 2);
}

}  // namespace
}  // namespace qkv::test
