// Copies between float and 16-bit floats: rows of any strides, in parallel.
//
// Errors: ShapeError (sizes that differ, a last axis whose stride is not 1, outputs that overlap the input). Thread safety: any
// number of concurrent calls.
#pragma once

#include "qkv/context.h"
#include "qkv/types.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// to = from, exactly.
QKV_API void convert(View<const BFloat16, 4> from, View<float, 4> to, Context& context = Context::default_context());
QKV_API void convert(View<const Float16, 4> from, View<float, 4> to, Context& context = Context::default_context());
/// to = from, each number rounded once, to nearest even; NaN stays NaN.
QKV_API void convert(View<const float, 4> from, View<BFloat16, 4> to, Context& context = Context::default_context());
QKV_API void convert(View<const float, 4> from, View<Float16, 4> to, Context& context = Context::default_context());

}  // namespace qkv::inline v0
