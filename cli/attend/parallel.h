// `qkv attend --parallel`: each rank reads, computes and writes its rows.
#pragma once

#include "attend/options.h"

namespace qkv::cli {

/// On one rank: all ranks together write what one machine would write. UsageError for what is not cut: .npy files,
/// weights, captures.
void attend_on_ranks(const AttendOptions& options, const Ranks& ranks);

}  // namespace qkv::cli
