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

}  // namespace qkv::inline v0
