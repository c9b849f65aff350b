// Rows of two tables added up in one pass over y: the toy's projected embeddings and positions (lm/table_projection.h).
#pragma once

#include <span>

#include "qkv/context.h"
#include "qkv/view.h"

namespace qkv::inline v0::nn {

/// y[m] = table[ids[m]] + other[other_ids[m]]. OptionError for an id outside its table.
QKV_API void gather_sum(View<const float, 2> table, std::span<const std::int64_t> ids, View<const float, 2> other,
    std::span<const std::int64_t> other_ids, View<float, 2> y, Context& context);

}  // namespace qkv::inline v0::nn
