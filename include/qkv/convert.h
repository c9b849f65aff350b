// Copies between float and 16-bit floats: rows of any strides, in parallel.
//
// Errors: ShapeError (sizes that differ, a last axis whose stride is not 1, outputs that overlap the input). Thread
// safety: any number of concurrent calls.
#pragma once

#include "qkv/context.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

namespace detail {
QKV_API void convert(const AnyView& from, const AnyView& to, Context& context);
}

/// to = from, both of four axes and the same sizes: exactly from 16 bits to float; from float to 16 bits each number
/// rounded once, to nearest even; NaN stays NaN.
template <Operand From, Operand To>
  requires(std::is_same_v<ElementOf<From>, float> != std::is_same_v<ElementOf<To>, float> &&
           sizeof(ElementOf<From>) <= 4 && sizeof(ElementOf<To>) <= 4)
void convert(const From& from, To&& to, Context& context = Context::default_context()) {
  detail::convert(In<From, 4>(from), Out<To, 4>(to), context);
}

}  // namespace qkv::inline v0
