// One seed for every purpose: what is drawn for (purpose, a, b) is a pure function of the run's seed and these three
// numbers.
#pragma once

#include <cstdint>

#include "core/random.h"

namespace qkv::inline v0::lm {

/// The purposes of random numbers; different purposes never share a counter.
enum class Draw : std::uint32_t { kParameters = 1, kDropout, kWindow, kCharacter, kHidden, kSample, kScore };

/// a and b are taken mod 2^32.
inline std::uint64_t derived_seed(std::uint64_t seed, Draw purpose, Index a, Index b = 0) {
  // Word 3 is 0 in dropout's counters, 1 in Random's.
  const PhiloxWords words =
      philox4x32({static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(purpose), 2},
          philox_key(seed));
  return words[0] | std::uint64_t{words[1]} << 32;
}

/// In [0, n), n >= 1.
inline Index draw_below(Random& random, Index n) {
  return static_cast<Index>(random.below(static_cast<std::uint64_t>(n)));
}

}  // namespace qkv::inline v0::lm
