// Philox 4x32-10, a counter-based generator: random bits are a pure function of key and counter, so any thread, tile or
// instruction set gets the same ones. And dropout's rule on top of it (qkv/attention.h, Dropout). Salmon, Moraes, Dror,
// Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", sections 3.3 and 4.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/check.h"

namespace qkv::inline v0 {

using PhiloxWords = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxKey philox_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

inline PhiloxWords philox4x32(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

/// t = round(p * 65536), 0..65536. Throws OptionError when p is outside [0, 1], or above 0 and too small to ever drop.
inline std::uint32_t dropout_threshold(double p, std::string_view function) {
  check<OptionError>(p >= 0 && p <= 1, function, "dropout p must be in [0, 1]: got ", p);
  const auto threshold = static_cast<std::uint32_t>(std::floor(p * 65536 + 0.5));
  check<OptionError>(p == 0 || threshold > 0, function, "dropout p above 0 must be at least 2^-17: got ", p);
  return threshold;
}

/// The factor of kept weights: 65536 / (65536 - t); 0 for t = 65536, which keeps none.
inline double dropout_scale(std::uint32_t threshold) {
  return threshold == 65536 ? 0.0 : 65536.0 / (65536.0 - threshold);
}

/// The four words that decide keys 8 * (j / 8) .. + 7 of query i. `sequence_head` is (b * H + h) mod 2^32.
inline PhiloxWords dropout_words(PhiloxKey key, Index i, Index j, std::uint32_t sequence_head) {
  return philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 8), sequence_head, 0}, key);
}

/// Key j uses 16-bit half j % 8 of the words, low half of word 0 first; dropped iff half < t.
inline bool dropped(const PhiloxWords& words, Index j, std::uint32_t threshold) {
  const auto half = static_cast<unsigned>(j % 8);
  return ((words[half / 2] >> (16 * (half % 2))) & 0xFFFFU) < threshold;
}

inline bool dropped(PhiloxKey key, Index i, Index j, std::uint32_t sequence_head, std::uint32_t threshold) {
  return dropped(dropout_words(key, i, j, sequence_head), j, threshold);
}

}  // namespace qkv::inline v0
