// Nothing is allocated after the first call of a shape: ragged batches, rotary positions, a layer's forward, backward
// and steps.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "nn_support.h"
#include "qkv/varlen.h"
#include "support/allocations.h"

namespace qkv {
namespace {

using test::random_tensor;

TEST(Memory, RaggedBatchesAllocateNothingAfterTheFirstCall) {
  const std::vector<Index> offsets{0, 70, 70, 71, 400, 403}, kv_offsets{0, 70, 75, 600, 900, 1000};
  const Tensor<float> q = random_tensor({403, 4, 16}, 1), k = random_tensor({1000, 2, 16}, 2),
                      v = random_tensor({1000, 2, 16}, 3), dout = random_tensor({403, 4, 16}, 4);
  Tensor<float> out(q.sizes()), lse({403, 4}), dq(q.sizes()), dk(k.sizes()), dv(v.sizes());
  const AttentionOptions options{
      .mask = Mask::causal(Align::kBottomRight), .dropout = {.p = 0.1, .seed = 1, .training = true}};
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  expect_no_allocation_after_the_first(context, [&] {
    attention_varlen_forward(q, k, v, {.out = out, .lse = lse}, {offsets, kv_offsets}, options, context);
    attention_varlen_backward(
        q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, {offsets, kv_offsets}, options, context);
  });
}

TEST(Memory, AGroupedLayerAllocatesNothingAfterTheFirstCall) {
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  nn::GroupedQueryAttention layer({.embed_dim = 24,
      .num_heads = 4,
      .num_kv_heads = 2,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .causal = true});
  const Tensor<float> x = random_tensor({2, 300, 24}, 1), dy = random_tensor({2, 300, 24}, 2);
  Tensor<float> y(x.sizes()), dx(x.sizes());
  nn::Saved saved;
  expect_no_allocation_after_the_first(context, [&] {
    layer.forward_into(x, y, {.positions = {.offset = 3}, .context = &context}, &saved);
    layer.backward_into(dy, saved, dx, context);
  });
  expect_no_allocation_after_the_first(context, [&] { layer.forward_into(x, y, {.context = &context}, nullptr); });
  KVCache cache({.num_kv_heads = 2, .head_dim = 6, .sequences = 2, .capacity = 2000});
  nn::StepMemory memory;
  expect_no_allocation_after_the_first(context, [&] { layer.step(x, y, cache, memory, {}, context); });
  expect_only_bad_alloc([&] {
    Context other({.threads = 1});
    nn::Saved fresh;
    layer.forward_into(x, y, {.context = &other}, &fresh);
    layer.backward_into(dy, fresh, dx, other);
  });
}

}  // namespace
}  // namespace qkv
