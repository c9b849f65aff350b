// What a look at attention saw, by the names that files and documents give it. Not: asking for it (attend/capture.h,
// look.h).
#pragma once

#include <utility>
#include <vector>

#include "qkv/capture.h"
#include "support/json.h"

namespace qkv::cli {

/// The statistics [B, heads, Tq] in the order of the .npy file; all as doubles.
std::vector<std::pair<const char*, Tensor<double>>> statistics_of(const CaptureResult& seen);

/// Statistics, the largest of each row and column mass, as nested lists; what was not asked for is left out.
void add_seen(Json& document, const CaptureResult& seen);

}  // namespace qkv::cli
