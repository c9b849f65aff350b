// Which rows every rank holds.
#pragma once

#include <vector>

#include "qkv/dist/context_parallel.h"

namespace qkv::inline v0::dist {

/// rows_of_rank of all ranks.
std::vector<std::vector<Rows>> rows_of_ranks(const ContextParallelOptions& cut, Index length, int ranks);

}  // namespace qkv::inline v0::dist
