// Bits that no other key changes: the future of a causal mask, a window without ends. Relations of every form:
// relations_test.cc.
#include <gtest/gtest.h>

#include "support/checks/bounds.h"
#include "support/forms/form.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class Bits : public testing::Test {};
TYPED_TEST_SUITE(Bits, StorageTypes);

TYPED_TEST(Bits, ACausalPrefixIgnoresTheFuture) {
  using T = TypeParam;
  for (const Index prefix : {1, 40, 128, 199}) {
    for_each_isa(2, [&](Context& context) {
      const Problem<T> problem({1, 2, 2, 200, 200, 9, 9, MaskKind::kCausal});
      Result<T> before(problem), after(problem);
      before.run_forward(problem, context);
      for (const View<T, 4>& view : {problem.q(), problem.k(), problem.v()}) {
        for (Index h = 0; h < 2; ++h) {
          for (Index t = prefix; t < 200; ++t) {
            std::fill_n(&view(0, h, t, 0), 9, t % 3 == 0 ? kQuietNan<T> : number_as<T>(1e3));
          }
        }
      }
      after.run_forward(problem, context);
      const auto first = [&](const Result<T>& result) { return copy_as<T>(result.out.view.sliced(2, 0, prefix)); };
      EXPECT_TRUE(same_bits(first(before), first(after)));
    });
  }
}

TYPED_TEST(Bits, AnUnboundedWindowIsNoMask) {
  using T = TypeParam;
  Problem<T> problem({.num_heads = 2, .num_kv_heads = 2, .q_len = 70, .kv_len = 150, .head_dim = 16, .v_head_dim = 16});
  for_each_isa(1, [&](Context& context) {
    Result<T> without(problem), with(problem);
    without.run(problem, context);
    problem.options.mask = Mask::window(-1, -1, Align::kBottomRight);
    with.run(problem, context);
    problem.options.mask = Mask();
    const auto a = outputs_of(without), b = outputs_of(with);
    for (std::size_t n = 0; n < a.size(); ++n) EXPECT_TRUE(same_bits(a[n], b[n])) << kOutputNames[n];
  });
}

}  // namespace
}  // namespace qkv::test
