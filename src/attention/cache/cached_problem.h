// One checked call on a cache as a Problem. Not: how the cache is passed to kernels (cached.h), the calls (cached_forward.cc).
#pragma once

#include "attention/problem.h"

namespace qkv::inline v0 {

/// Throws ShapeError, OptionError, UnsupportedError. Refers to the cache and the options.
template <class T>
Problem<T> make_cached_problem(const char* function, const View<const T, 4>& q, const KeyValue& kv,
                               const AttentionOptions& options, Context& context, CallMemory& memory);

}  // namespace qkv::inline v0
