#include "qkv/nn/dropout.h"

#include "core/check.h"
#include "core/philox.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {

namespace {

template <class T>
void apply(View<const T, 3> x, View<T, 3> y, const Dropout& dropout, Context& context, std::span<const Index> numbers) {
  check<ShapeError>(x.sizes() == y.sizes(), "apply_dropout", "x and y must have the same sizes: got ", x, " and ", y);
  check<ShapeError>(numbers.empty() || static_cast<Index>(numbers.size()) == x.size(1), "apply_dropout",
      "there must be a number for each token: got ", numbers.size(), " for ", x);
  const std::uint32_t threshold = dropout.active() ? dropout_threshold(dropout.p, "apply_dropout") : 0;
  const auto scale = static_cast<float>(dropout_scale(threshold));
  const PhiloxKey key = philox_key(dropout.seed ^ 0x9E3779B97F4A7C15U);
  const Index tokens = x.size(1);
  const Index features = x.size(2);
  for_row_blocks(context, {x.size(0) * tokens, features}, [&](Index begin, Index end, Index) {
    for (Index row = begin; row < end; ++row) {
      const Index b = row / tokens;
      const Index t = row % tokens;
      const Index number = numbers.empty() ? t : numbers[static_cast<std::size_t>(t)];
      const T* from = &x(b, t, 0);
      T* to = &y(b, t, 0);
      const auto sequence = static_cast<std::uint32_t>(b + dropout.first_sequence);
      PhiloxWords words{};
      for (Index e = 0; e < features; ++e) {
        if (e % 8 == 0 && threshold != 0) words = dropout_words(key, number, e, sequence);
        to[e * y.stride(2)] =
            static_cast<T>(static_cast<float>(from[e * x.stride(2)]) * (dropped(words, e, threshold) ? 0.0F : scale));
      }
    }
  });
}

}  // namespace

void apply_dropout(View<const float, 3> x, View<float, 3> y, const Dropout& dropout, Context& context,
    std::span<const Index> numbers) {
  apply(x, y, dropout, context, numbers);
}
void apply_dropout(View<const BFloat16, 3> x, View<BFloat16, 3> y, const Dropout& dropout, Context& context,
    std::span<const Index> numbers) {
  apply(x, y, dropout, context, numbers);
}

}  // namespace qkv::inline v0::nn
