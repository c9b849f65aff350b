// Philox 4x32-10 with one counter per lane (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// The scalar twin, which the tests hold against this one, is core/philox.h.
#pragma once

#include "simd/vec.h"

namespace qkv {
namespace {

/// words[0..3] hold the counter and become the random words.
inline void philox(U32 words[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    U32 low0, high0, low1, high1;
    multiply_wide(words[0], 0xD2511F53u, low0, high0);
    multiply_wide(words[2], 0xCD9E8D57u, low1, high1);
    words[0] = high1 ^ words[1] ^ key0;
    words[1] = low1;
    words[2] = high0 ^ words[3] ^ key1;
    words[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace qkv
