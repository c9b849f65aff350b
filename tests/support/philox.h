// Dropout's generator a second time, written from its definition, so that the oracle shares no code with what it tests.
// Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Definition of use:
// qkv::Dropout.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "qkv/attention.h"
#include "reference/attention.h"

namespace qkv::test {

using Words = std::array<std::uint32_t, 4>;

/// Ten rounds; after each of the first nine the key is bumped by the Weyl constants.
inline Words philox(Words counter, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// 0, or 65536 / (65536 - t) with t = round(p * 65536), for the weight (b, h, i, j).
inline double dropout_factor(const Dropout& dropout, Index num_heads, Index b, Index h, Index i, Index j) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(dropout.p * 65536));
  const Words words = philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 8),
                                 static_cast<std::uint32_t>((dropout.first_sequence + b) * num_heads + h), 0},
      dropout.seed);
  const std::uint32_t word = words[static_cast<std::size_t>(j % 8 / 2)];
  const std::uint32_t half = j % 2 == 0 ? word & 0xFFFF : word >> 16;
  return half < threshold ? 0.0 : 65536.0 / (65536.0 - threshold);
}

/// The oracle's dropout; none when it is not active.
inline reference::Factor factor_of(const Dropout& dropout, Index num_heads) {
  if (!dropout.active()) return {};
  return [=](Index b, Index h, Index i, Index j) { return dropout_factor(dropout, num_heads, b, h, i, j); };
}

}  // namespace qkv::test
