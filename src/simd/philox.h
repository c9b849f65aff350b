// Philox 4x32-10 with one counter per lane (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// The scalar twin, which the tests hold against this one, is core/philox.h.
#pragma once

#include <utility>

#include "simd/vec.h"

namespace qkv {
namespace {

/// The keys of the rounds, the same in every lane; they grow by Weyl constants.
struct PhiloxRounds {
  static constexpr int kRounds = 10;
#if defined(__SSE2__)
  using Lanes = U64;
#else
  using Lanes = U32;
#endif
  Lanes keys[kRounds][2];

  PhiloxRounds(std::uint32_t key0, std::uint32_t key1) {
    for (auto& key : keys) {
      key[0] = Lanes{} + key0;
      key[1] = Lanes{} + key1;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }
};

constexpr std::uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};

#if defined(__SSE2__)

/// The 64-bit products of the low halves of 64-bit lanes: the one wide multiplication of x86.
inline U64 multiply_low_halves(U64 a, U64 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<U64>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<U64>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return reinterpret_cast<U64>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
}

/// The odd 32-bit lanes, each where the even one before it was.
template <int... kLane> inline U64 odd_to_even(U64 a, std::integer_sequence<int, kLane...>) {
  const U32 lanes = reinterpret_cast<U32>(a);
  return reinterpret_cast<U64>(__builtin_shufflevector(lanes, lanes, (kLane | 1)...));
}
/// The even 32-bit lanes of both, a's first in each pair.
template <int... kLane> inline U32 interleave_even(U64 a, U64 b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(reinterpret_cast<U32>(a), reinterpret_cast<U32>(b),
      ((kLane & 1) != 0 ? static_cast<int>(sizeof...(kLane)) + kLane - 1 : kLane)...);
}

/// words[0..3] hold the counter and become the random words. Even and odd lanes are separated, each in the low half of
/// 64 bits: a 64-bit product then has both of its words in place, and the high halves of operands are never read.
inline void philox(U32 words[4], const PhiloxRounds& rounds) {
  constexpr std::make_integer_sequence<int, Simd<float>::kLanes> lanes;
  U64 parts[2][4];
  for (int w = 0; w < 4; ++w) {
    parts[0][w] = reinterpret_cast<U64>(words[w]);
    parts[1][w] = odd_to_even(parts[0][w], lanes);
  }
  for (const U64(&key)[2] : rounds.keys) {
    for (auto& part : parts) {
      const U64 product0 = multiply_low_halves(part[0], U64{} + kPhiloxMultipliers[0]);
      const U64 product1 = multiply_low_halves(part[2], U64{} + kPhiloxMultipliers[1]);
      part[0] = part[1] ^ odd_to_even(product1, lanes) ^ key[0];
      part[1] = product1;
      part[2] = part[3] ^ odd_to_even(product0, lanes) ^ key[1];
      part[3] = product0;
    }
  }
  for (int w = 0; w < 4; ++w) words[w] = interleave_even(parts[0][w], parts[1][w], lanes);
}

#else

/// words[0..3] hold the counter and become the random words.
inline void philox(U32 words[4], const PhiloxRounds& rounds) {
  for (const U32(&key)[2] : rounds.keys) {
    U32 low0, high0, low1, high1;
    multiply_wide(words[0], kPhiloxMultipliers[0], low0, high0);
    multiply_wide(words[2], kPhiloxMultipliers[1], low1, high1);
    words[0] = high1 ^ words[1] ^ key[0];
    words[1] = low1;
    words[2] = high0 ^ words[3] ^ key[1];
    words[3] = low0;
  }
}

#endif

}  // namespace
}  // namespace qkv
