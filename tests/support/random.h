// Small seeded random numbers for test data: the same on every machine and standard library. SplitMix64, Steele et al.
// 2014.
#pragma once

#include <cstdint>

#include "qkv/types.h"

namespace qkv::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// In [-1, 1).
  double symmetric() { return 2 * unit() - 1; }
  /// In [0, count).
  Index below(Index count) { return static_cast<Index>(bits() % static_cast<std::uint64_t>(count)); }

 private:
  std::uint64_t state_;
};

}  // namespace qkv::test
