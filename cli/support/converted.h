// Tensors in another element type.
#pragma once

#include <algorithm>

#include "qkv/tensor.h"

namespace qkv::cli {

/// The same numbers, contiguous, as another type.
template <class To, class From> Tensor<To> converted(const View<const From, 4>& x) {
  Tensor<To> result({x.size(0), x.size(1), x.size(2), x.size(3)});
  To* to = result.data();
  for (Index b = 0; b < x.size(0); ++b) {
    for (Index h = 0; h < x.size(1); ++h) {
      for (Index i = 0; i < x.size(2); ++i) {
        for (Index d = 0; d < x.size(3); ++d) {
          if constexpr (sizeof(From) == 2 || sizeof(To) == 2) {
            *to++ = static_cast<To>(static_cast<float>(x(b, h, i, d)));
          } else {
            *to++ = static_cast<To>(x(b, h, i, d));
          }
        }
      }
    }
  }
  return result;
}
template <class To, class From> Tensor<To> converted(const Tensor<From>& from) {
  Tensor<To> to(from.sizes());
  std::transform(from.data(), from.data() + from.count(), to.data(), [](From value) { return static_cast<To>(value); });
  return to;
}

}  // namespace qkv::cli
