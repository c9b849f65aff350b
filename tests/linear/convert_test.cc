// convert(): the numbers of BFloat16 and Float16, bit for bit, with any strides and threads; what it refuses.
#include "qkv/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/threads/context_impl.h"
#include "support/errors.h"
#include "support/index.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

template <class S> class Convert : public testing::Test {};
using Narrow = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Convert, Narrow);

/// [2, 5, 70, 19] with a gap behind each row, tokens before heads.
template <class T> View<T, 4> spread(Tensor<T>& memory) {
  memory = Tensor<T>({2, 70, 5, 23});
  return memory.template view<4>().sliced(3, 0, 19).transposed(1, 2);
}

TYPED_TEST(Convert, EveryNumberIsTheTypesOwn) {
  using S = TypeParam;
  Tensor<float> wide_memory, back_memory;
  Tensor<S> narrow_memory;
  const View<float, 4> wide = spread(wide_memory), back = spread(back_memory);
  const View<S, 4> narrow = spread(narrow_memory);
  Random random(3);
  for_each_isa(1, [&](Context& one) {
    Context many({.threads = 3, .isa = one.isa(), .executor = nullptr});
    many.impl().region_flops = 0;
    for (Context* context : {&one, &many}) {
      for_each_index(wide.sizes(), [&](Index b, Index h, Index t, Index d) {
        wide(b, h, t, d) = std::ldexp(static_cast<float>(random.symmetric()), static_cast<int>(random.below(50)) - 30);
      });
      wide(0, 0, 0, 0) = std::nanf(""), wide(1, 4, 69, 18) = -HUGE_VALF;
      convert(wide, narrow, *context);
      convert(narrow, back, *context);
      for_each_index(wide.sizes(), [&](Index b, Index h, Index t, Index d) {
        const S wanted(wide(b, h, t, d));
        EXPECT_EQ(narrow(b, h, t, d).bits, wanted.bits);
        EXPECT_EQ(
            std::bit_cast<std::uint32_t>(back(b, h, t, d)), std::bit_cast<std::uint32_t>(static_cast<float>(wanted)));
      });
    }
  });
  for (Index row = 0; row < 2 * 70 * 5; ++row) {
    for (Index d = 19; d < 23; ++d) EXPECT_EQ(back_memory.data()[row * 23 + d], 0.0F);
  }
}

TEST(ConvertErrors, NameBothSides) {
  Tensor<float> wide({1, 2, 3, 4});
  Tensor<BFloat16> narrow({1, 2, 3, 5});
  expect_parts(text_of<ShapeError>([&] { convert(wide.view<4>(), narrow.view<4>()); }),
      {"[convert]", "[1, 2, 3, 4]", "[1, 2, 3, 5]"});
  const View<float, 4> turned = wide.view<4>().transposed(2, 3);
  const View<BFloat16, 4> to(narrow.data(), turned.sizes());
  expect_parts(text_of<ShapeError>([&] { convert(turned, to); }), {"[convert]", "from", "stride 4"});
  const View<BFloat16, 4> same(reinterpret_cast<BFloat16*>(wide.data()), {1, 2, 3, 4});
  expect_parts(text_of<ShapeError>([&] { convert(wide.view<4>(), same); }), {"to", "from", "share no element"});
}

}  // namespace
}  // namespace qkv::test
