// Memory beyond inputs and outputs: at most 2 MiB a thread forward, three numbers a row more backward, at any length; and
// nothing allocated after the first call of a shape.
#include <gtest/gtest.h>

#include "qkv/qkv.h"
#include "support/allocations.h"

namespace qkv::test {
namespace {

struct Tensors {
  Tensor<float> q, k, v, out, dout, dq, dk, dv, lse;
  Tensors(Index heads, Index length, Index width)
      : q({1, heads, length, width}),
        k(q.sizes()),
        v(q.sizes()),
        out(q.sizes()),
        dout(q.sizes()),
        dq(q.sizes()),
        dk(q.sizes()),
        dv(q.sizes()),
        lse({1, heads, length}) {
    Index n = 0;
    for (Tensor<float>* t : {&q, &k, &v, &dout}) {
      for (float& x : t->span()) x = static_cast<float>(n++ % 17) / 17 - 0.5F;
    }
  }

  void forward(const AttentionOptions& options, Context& context) { attention_forward(q, k, v, out, lse, options, context); }
  void backward(const AttentionOptions& options, Context& context) {
    attention_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, options, context);
  }
};

constexpr std::size_t kThreadBytes = std::size_t{2} << 20;

TEST(Memory, StaysSmallAtLength65536) {
  constexpr Index length = 65536;
  Tensors t(1, length, 128);
  Context context({.threads = 2});
  const AttentionOptions options{.mask = Mask::causal() & Mask::sliding(300)};
  t.forward(options, context);
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes);
  context.trim();
  EXPECT_EQ(context.scratch_bytes(), 0U);
  t.backward(options, context);
  const std::size_t rows = 3 * sizeof(float) * length + 65536;  // delta, lse in two parts; turns
  EXPECT_LE(context.scratch_bytes(), 2 * kThreadBytes + rows);
}

TEST(Memory, StaysSmallForWideHeads) {
  for (const Index width : {512, 728, 768, 1024}) {
    Tensors t(1, 130, width);
    Context context({.threads = 1});
    t.forward({}, context);
    EXPECT_LE(context.scratch_bytes(), kThreadBytes) << width;
    context.trim();
    t.backward({}, context);
    EXPECT_LE(context.scratch_bytes(), kThreadBytes) << width;
  }
}

TEST(Memory, ThePlanSaysWhatIsUsed) {
  Tensors t(2, 500, 64);
  Context context({.threads = 2});
  const AttentionPlan plan = attention_plan(t.q, t.k, t.v, {}, context);
  t.forward({}, context);
  EXPECT_EQ(context.scratch_bytes(), 2 * plan.forward_scratch_bytes);
}

TEST(Memory, NothingIsAllocatedAfterTheFirstCall) {
  Tensors t(4, 300, 64);
  Context context({.threads = 2});
  const AttentionOptions options{.mask = Mask::causal(), .dropout = {.p = 0.1, .seed = 1, .training = true}};
  const auto both = [&] {
    t.forward(options, context);
    t.backward(options, context);
  };
  both();
  const long before = allocations.load();
  const std::size_t scratch = context.scratch_bytes();
  for (int call = 0; call < 5; ++call) both();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(context.scratch_bytes(), scratch);
}

}  // namespace
}  // namespace qkv::test
