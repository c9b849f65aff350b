#include "qkv/nn/dropout.h"

#include "core/check.h"
#include "core/philox.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {

namespace {

template <class T>
void apply(View<const T, 3> x, View<T, 3> y, const Dropout& dropout, Context& context) {
  check<ShapeError>(x.sizes() == y.sizes(), "apply_dropout", "x and y must have the same sizes: got ", x, " and ", y);
  const std::uint32_t threshold = dropout.active() ? dropout_threshold(dropout.p, "apply_dropout") : 0;
  const auto scale = static_cast<float>(dropout_scale(threshold));
  const PhiloxKey key = philox_key(dropout.seed ^ 0x9E3779B97F4A7C15U);
  const Index tokens = x.size(1);
  const Index features = x.size(2);
  for_row_blocks(context, {x.size(0) * tokens, features}, [&](Index begin, Index end, Index) {
    for (Index row = begin; row < end; ++row) {
      const Index b = row / tokens;
      const Index t = row % tokens;
      const T* from = &x(b, t, 0);
      T* to = &y(b, t, 0);
      const auto sequence = static_cast<std::uint32_t>(b + dropout.first_sequence);
      PhiloxWords words{};
      for (Index e = 0; e < features; ++e) {
        if (e % 8 == 0 && threshold != 0) words = dropout_words(key, t, e, sequence);
        to[e * y.stride(2)] =
            static_cast<T>(static_cast<float>(from[e * x.stride(2)]) * (dropped(words, e, threshold) ? 0.0F : scale));
      }
    }
  });
}

}  // namespace

void apply_dropout(View<const float, 3> x, View<float, 3> y, const Dropout& dropout, Context& context) {
  apply(x, y, dropout, context);
}
void apply_dropout(View<const BFloat16, 3> x, View<BFloat16, 3> y, const Dropout& dropout, Context& context) {
  apply(x, y, dropout, context);
}

}  // namespace qkv::inline v0::nn
