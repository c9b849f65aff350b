// Checks of every call's tensors: sizes that fit together, last strides of 1; and their types as template
// arguments.
#pragma once

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/overlap.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// body(Sum{}) of the type in which elements are added up.
template <class Body> decltype(auto) with_sums(StoredType elements, const Body& body) {
  if (elements == StoredType::kF64) return body(double{});
  return body(float{});
}
/// body(E{}) of the type of elements, one of those whose sums are of type Sum.
template <class Sum, class Body> void with_elements(StoredType elements, const Body& body) {
  if constexpr (std::is_same_v<Sum, float>) {
    if (elements == StoredType::kBF16) return body(BFloat16{});
    if (elements == StoredType::kF16) return body(Float16{});
  }
  body(Sum{});
}

inline void check_last_stride(const char* function, const char* name, const AnyView& x) {
  const int last = x.rank - 1;
  check<ShapeError>(x.stride(last) == 1 || x.size(last) == 1 || x.is_empty(), function, "the last axis of ", name,
      " must have stride 1: got stride ", x.stride(last), " for ", x);
}

/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]. `v_unused`: v is not read and may be null.
void check_qkv(const char* function, const AnyView& q, const AnyView& k, const AnyView& v, bool v_unused);

/// Throws ShapeError unless x is [sizes...] with last stride 1.
template <class... Sizes> void check_sizes(const char* function, const char* name, const AnyView& x, Sizes... sizes) {
  check<ShapeError>(
      x.has_sizes(sizes...), function, name, " must be ",
      [&] { return shape_text(std::array{sizes...}.data(), sizeof...(Sizes)); }, ": got ", x);
  check_last_stride(function, name, x);
}

}  // namespace qkv::inline v0
