// The state of a Context.
#pragma once

#include <memory>

#include "core/costs.h"
#include "core/threads/fork.h"
#include "core/threads/scratch.h"
#include "qkv/context.h"

namespace qkv::inline v0 {

/// Whether an item of the region that this thread works in has thrown.
QKV_API bool region_failed();
/// Ends an item that waits for one that has thrown. The exception never leaves the region.
struct RegionFailed {};

struct Context::Impl {
  std::shared_ptr<Executor> executor;
  int threads = 1;
  Isa isa = Isa::kScalar;
  Bits bits = Bits::kFast;
  double region_flops = kRegionFlops;  // tests of small shapes set 0
  RegionLock region;
  ScratchPool scratch;
};

}  // namespace qkv::inline v0
