// qkv/easy.h: vectors in and out, with the bits of the calls on views.
#include "qkv/easy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/errors.h"

namespace qkv::test {
namespace {

template <class T> std::vector<T> numbers(std::size_t count, T first) {
  std::vector<T> all(count);
  for (std::size_t n = 0; n < count; ++n) all[n] = std::sin(first + static_cast<T>(n));
  return all;
}

template <class T> void expect_the_bits_of_views() {
  const easy::Shape s{.B = 2, .H = 4, .T = 9, .D = 8, .Hkv = 2, .Tk = 11, .Dv = 5};
  const std::vector<T> q = numbers<T>(2 * 4 * 9 * 8, 1), k = numbers<T>(2 * 2 * 11 * 8, 2),
                       v = numbers<T>(2 * 2 * 11 * 5, 3), dout = numbers<T>(2 * 4 * 9 * 5, 4);
  const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight)};
  const auto r = easy::attention(q, k, std::span<const T>(v), s, options);
  const auto g = easy::backward(q, k, v, r, dout, s, options);

  Tensor<T> out({2, 4, 9, 5}), lse({2, 4, 9}), dq({2, 4, 9, 8}), dk({2, 2, 11, 8}), dv({2, 2, 11, 5});
  const View<const T, 4> qv(q.data(), {2, 4, 9, 8}), kv(k.data(), {2, 2, 11, 8}), vv(v.data(), {2, 2, 11, 5}),
      dv_out(dout.data(), {2, 4, 9, 5});
  attention_forward(qv, kv, vv, {.out = out, .lse = lse}, options);
  attention_backward(qv, kv, vv, out, lse, dv_out, {.dq = dq, .dk = dk, .dv = dv}, options);
  const auto same = [](const std::vector<T>& got, const Tensor<T>& wanted) {
    return std::ranges::equal(got, wanted.span());
  };
  EXPECT_TRUE(same(r.out, out) && same(r.lse, lse) && same(g.dq, dq) && same(g.dk, dk) && same(g.dv, dv));
}

TEST(Easy, HasTheBitsOfViews) {
  expect_the_bits_of_views<float>();
  expect_the_bits_of_views<double>();
}

TEST(Easy, ChecksEverySize) {
  const std::vector<float> x(2 * 3 * 4), few(2 * 3 * 4 - 1);
  const easy::Shape s{.H = 2, .T = 3, .D = 4};
  const auto r = easy::attention(x, x, x, s);
  EXPECT_EQ(text_of<ShapeError>([&] { easy::attention(x, few, x, s); }),
      "[easy] k must have the numbers of [1, 2, 3, 4]: got 23");
  EXPECT_EQ(text_of<ShapeError>([&] { easy::attention(x, x, x, {.H = 2, .T = 3, .D = 4, .Tk = 5}); }),
      "[easy] k must have the numbers of [1, 2, 5, 4]: got 24");
  EXPECT_EQ(text_of<ShapeError>([&] { easy::backward(x, x, x, r, few, s); }),
      "[easy] dout must have the numbers of [1, 2, 3, 4]: got 23");
  EXPECT_THROW(easy::attention(x, x, x, {.H = -2, .T = -3, .D = 4}), ShapeError);
}

}  // namespace
}  // namespace qkv::test
