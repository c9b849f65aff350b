// What a Context holds.
#pragma once

#include <memory>

#include "core/fork.h"
#include "core/scratch.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

struct Context::Impl {
  std::shared_ptr<Executor> executor;
  int threads = 1;
  Isa isa = Isa::kScalar;
  RegionLock region;
  ScratchPool scratch;
};

}  // namespace v0
}  // namespace qkv
