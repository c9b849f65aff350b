// Products of bf16 pairs in double, in which every product of two bf16 numbers is exact; denormals in and out are zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "qkv/types.h"

namespace qkv::test {

inline float flush(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x; }

inline float half_of(std::uint32_t pair, bool upper) {
  return static_cast<float>(std::bit_cast<BFloat16>(static_cast<std::uint16_t>(upper ? pair >> 16 : pair)));
}

/// sum + a * b, fused: exact in double for numbers of similar size, as random_pair makes them.
inline float model_fma(float sum, float a, float b) {
  return flush(static_cast<float>(
      std::fma(static_cast<double>(flush(a)), static_cast<double>(flush(b)), static_cast<double>(flush(sum)))));
}

/// Two numbers of similar size, so that double holds their sums exactly.
inline std::uint32_t random_pair(std::mt19937& random) {
  const auto half = [&] {
    const auto exponent = static_cast<std::uint32_t>(117 + random() % 20);
    return (static_cast<std::uint32_t>(random()) & 0x807FU) | exponent << 7;
  };
  return half() | half() << 16;
}

}  // namespace qkv::test
