// How tiles are counted for a plan, and the flops that follow. Not: work items and memory (forward_driver.cc,
// backward_driver.cc).
#pragma once

#include "attention/call/problem.h"

namespace qkv::inline v0 {

/// Adds the tiles of all heads of sequence b, query strips x chunks of `key_tile` keys, and the flops of their kept pairs.
/// Throws what a callback throws.
template <class T>
void add_tiles(const Problem<T>& p, Index b, Index key_tile, AttentionPlan& plan);

}  // namespace qkv::inline v0
