// What work costs, and which tensors stay in which cache: what calls of all kinds decide by. Nothing that follows from
// these numbers changes bits (docs/concepts/semantics.md). Sizes of blocks, for a cache or in bits, are constants of
// the kernels (attention/scratch.h, decode/scores.h, layers/) and of what they bound (attention/plan/schedule.cc).
//
// Measured on Zen 5 (L1d 48 KiB, L2 1 MiB; 2026-11-20 to 26). On Zen 4 (32 KiB, 1 MiB; 2026-11-27) forward, backward
// and decode were measured again with them; only the cache that few rows prefetch into differs (core/cpu.h). Caches are
// not read from the machine: a virtual one shows 32 or 320 MiB of L3 for the same share.
#pragma once

#include "qkv/types.h"

namespace qkv::inline v0 {

// In the time of multiply-adds, of which a core does 1e11 a second.
inline constexpr double kRegionFlops = 8e6;  // 80 us: less work opens no region of threads
inline constexpr double kItemFlops = 5e4;    // a work item of attention, besides its products
inline constexpr double kElementFlops = 32;  // an element of light work: a copy, a normalised value
inline constexpr double kByteFlops = 4;      // reading a byte
inline constexpr double kStateFlops = 16;    // a number of linear attention's state: read twice, written once
inline constexpr double kScanFlops = 36, kScanBackwardFlops = 60;          // of a token, channel and state
inline constexpr double kConvolveFlops = 16, kConvolveBackwardFlops = 40;  // of a token, channel and tap

inline constexpr Index kFetchedBytes = Index{6} << 20;  // tensors together that stay in L3: fetching ahead costs more
inline constexpr Index kFetchedKeys = 1024;  // K and V of a head: half a megabyte at D 64, so they stay in L2

}  // namespace qkv::inline v0
