// Loops that do nothing but read memory, for the peak of reading (cli/bench/peak.cc). Which one reads fastest differs
// between CPUs: one to eight streams, prefetched or left to the hardware.
#pragma once

#include "kernels/params.h"
#include "simd/vec.h"

namespace qkv {
namespace {

/// The sum of `count` words, read as kStreams parts side by side, a register for each, prefetched kAhead lines ahead.
/// Parts have an odd number of lines.
template <int kStreams, int kAhead> std::uint64_t read_sum(const std::uint64_t* words, Index count) {
  using V [[gnu::vector_size(sizeof(Simd<double>::I))]] = std::uint64_t;  // sums of any words wrap
  constexpr Index line = 8, lanes = Simd<double>::kLanes;
  const Index part = ((count / kStreams / line - 1) | 1) * line;
  V sums[kStreams];
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; ++s) sums[s] = V{};
  for (Index at = 0; at < part; at += line) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const std::uint64_t* const from = words + s * part + at;
      if constexpr (kAhead > 0) __builtin_prefetch(from + kAhead * line, 0, 3);
#pragma GCC unroll 8
      for (Index x = 0; x < line; x += lanes) {
        V some;
        __builtin_memcpy(&some, from + x, sizeof some);
        sums[s] += some;
      }
    }
  }
  std::uint64_t sum = 0;
  for (Index at = kStreams * part; at < count; ++at) sum += words[at];
  for (int s = 0; s < kStreams; ++s) {
    std::uint64_t lane[lanes];
    __builtin_memcpy(lane, &sums[s], sizeof lane);
    for (Index x = 0; x < lanes; ++x) sum += lane[x];
  }
  return sum;
}

constexpr ReadLoop kReadLoops[kNumReadLoops] = {read_sum<1, 0>, read_sum<1, 16>, read_sum<2, 0>, read_sum<2, 16>,
    read_sum<4, 0>, read_sum<4, 8>, read_sum<8, 0>, read_sum<8, 8>};

}  // namespace
}  // namespace qkv
