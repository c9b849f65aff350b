// Rotary positions against a rotation in long double, element by element: forward, backward, in place.
#pragma once

#include "qkv/rotary.h"
#include "support/checks/expect.h"
#include "support/isas.h"

namespace qkv::test {

/// x [B, H, T, D] turned, element by element; `direction` -1 turns back.
template <class T> Tensor<long double> turned(const View<const T, 4>& x, const Rotary& rotary, RotaryLayout layout,
    const RotaryPositions& positions, int direction) {
  Tensor<long double> y = copy_as<long double>(x);
  const View<long double, 4> to = y;
  const Index pairs = rotary.rotary_dim() / 2;
  for_each_index(x.sizes(), [&](Index b, Index h, Index t) {
    Index position = positions.offset + t;
    if (!positions.offsets.empty()) position = positions.offsets[static_cast<std::size_t>(b)] + t;
    if (!positions.ids.is_null()) position = positions.ids(positions.ids.size(0) == 1 ? 0 : b, t);
    for (Index i = 0; i < pairs; ++i) {
      const long double angle = static_cast<long double>(position) *
                                static_cast<long double>(rotary.frequencies()[static_cast<std::size_t>(i)]);
      const long double c = std::cos(angle), s = std::sin(angle) * static_cast<long double>(direction);
      const Index first = layout == RotaryLayout::kHalfSplit ? i : 2 * i,
                  second = layout == RotaryLayout::kHalfSplit ? i + pairs : 2 * i + 1;
      const auto one = number_as<long double>(x(b, h, t, first)), two = number_as<long double>(x(b, h, t, second));
      const auto a = static_cast<long double>(rotary.attention_factor());
      to(b, h, t, first) = a * (one * c - two * s);
      to(b, h, t, second) = a * (two * c + one * s);
    }
  });
  return y;
}

/// Two products and a sum of the type of sums, cos and sin rounded to it (2 eps of each term), the angle's f64, and T's
/// rounding.
template <class T> void expect_turned(
    const Tensor<T>& actual, const Tensor<long double>& exact, const Rotary& rotary, double largest_angle) {
  using Sum = Accumulator<T>;
  const double eps = static_cast<double>(std::numeric_limits<Sum>::epsilon());
  for (Index n = 0; n < exact.count(); ++n) {
    const double bound =
        4 * rotary.attention_factor() * (eps + largest_angle * std::numeric_limits<double>::epsilon()) +
        kUnitRoundoff<T> * std::abs(static_cast<double>(exact.data()[n])) + (kIsHalf<T> ? 0x1p-25 : 0);
    ASSERT_LE(std::abs(static_cast<double>(number_as<long double>(actual.data()[n]) - exact.data()[n])), bound) << n;
  }
}

/// x [2, 3, 5, width], at positions of every kind.
template <class T> void check_rotary(Index width, const RotaryOptions& options, int threads) {
  const Tensor<T> x = random_tensor<T>({2, 3, 5, width}, 3);
  const std::vector<Index> offsets{7, 100000};
  Tensor<Index> ids({2, 5}), shared({1, 5});
  for (Index n = 0; n < 10; ++n) ids.data()[n] = (n * 37) % 11;
  for (Index n = 0; n < 5; ++n) shared.data()[n] = 5 - n;
  const Rotary rotary(width, options);
  for (const RotaryPositions& positions :
      {RotaryPositions{}, RotaryPositions{.offset = 123456}, RotaryPositions{.offset = -3},
          RotaryPositions{.offsets = offsets}, RotaryPositions{.ids = ids}, RotaryPositions{.ids = shared}}) {
    for_each_isa(threads, [&](Context& context) {
      Tensor<T> y(x.sizes());
      rotary.forward(x, y, positions, context);
      expect_turned(y, turned<T>(x, rotary, options.layout, positions, 1), rotary, 123456);
      Tensor<T> back(x.sizes());
      rotary.backward(x, back, positions, context);
      expect_turned(back, turned<T>(x, rotary, options.layout, positions, -1), rotary, 123456);
      Tensor<T> in_place = x.clone();
      rotary.forward(in_place, in_place, positions, context);
      EXPECT_TRUE(same_bits(in_place, y));
    });
  }
}

}  // namespace qkv::test
