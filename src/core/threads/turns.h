// Additions in a fixed order: item n waits for item n - 1. Work items add to shared memory in one order,
// whichever thread comes first, so bits never depend on threads and no per-thread copies are needed. Work items are
// claimed in ascending order (Context::parallel_for) and an item waits only for smaller ones, so some item can always
// go on. If an item throws, its turn is never passed on: items that wait for it end with RegionFailed.
#pragma once

#include <atomic>
#include <thread>

#include "core/threads/context_impl.h"

namespace qkv::inline v0 {

using Turn = std::atomic<Index>;

inline void wait_for_turn(const Turn& turn, Index number) {
  for (int spins = 0; turn.load(std::memory_order_acquire) != number;) {
    if (++spins <= 64) continue;
    spins = 64;  // a wait may be of minutes
    if (region_failed()) throw RegionFailed{};
    std::this_thread::yield();
  }
}

inline void pass_turn(Turn& turn, Index number) { turn.store(number + 1, std::memory_order_release); }

}  // namespace qkv::inline v0
