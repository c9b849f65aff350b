// The instruction sets that this build holds, each with why this CPU cannot run it.
#pragma once

#include <string>
#include <vector>

#include "qkv/context.h"

namespace qkv::inline v0 {

struct IsaCandidate {
  Isa isa;
  std::string obstacle;  // empty: this CPU runs it
};

/// Slowest first, as src/CMakeLists.txt compiles them. The CPU is asked once.
QKV_API const std::vector<IsaCandidate>& isa_candidates();

/// Whether rows of memory should be prefetched into L2, not into L1: on Zen 4, whose prefetches into L1 hold slots that
/// loads wait for (docs/dev/performance.md).
QKV_API bool prefers_l2_prefetch();

}  // namespace qkv::inline v0
