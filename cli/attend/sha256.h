// SHA-256 (FIPS 180-4), and the hash of a tensor's numbers: of its elements in row-major order, little-endian, every
// NaN as the quiet one without a sign, since bits of NaN differ between CPUs.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "qkv/types.h"

namespace qkv::cli {

inline std::string sha256(std::vector<std::uint8_t> bytes) {
  // The first 32 bits of the fractions of the cube roots of the first 64 primes.
  constexpr std::array<std::uint32_t, 64> k = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
      0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
      0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
      0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c,
      0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
      0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> state = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const std::uint64_t bits = 8 * static_cast<std::uint64_t>(bytes.size());
  bytes.push_back(0x80);
  while (bytes.size() % 64 != 56) bytes.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(bits >> shift));
  for (std::size_t begin = 0; begin < bytes.size(); begin += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t n = 0; n < 64; ++n) w[n / 4] = w[n / 4] << 8 | bytes[begin + n];
    for (std::size_t n = 16; n < 64; ++n) {
      const std::uint32_t x = w[n - 15], y = w[n - 2];
      w[n] = w[n - 16] + w[n - 7] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) +
             (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
    }
    std::array<std::uint32_t, 8> s = state;
    for (std::size_t n = 0; n < 64; ++n) {
      const std::uint32_t a = s[0], e = s[4];
      const std::uint32_t one =
          s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + k[n] + w[n];
      const std::uint32_t two =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s = {one + two, a, s[1], s[2], s[3] + one, e, s[5], s[6]};
    }
    for (std::size_t n = 0; n < 8; ++n) state[n] += s[n];
  }
  std::string hex;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

/// T: float or double.
template <class T> std::string hash_of_numbers(std::span<const T> numbers) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(numbers.size() * sizeof(T) + 72);  // with the padding
  for (const T x : numbers) {
    const auto own =
        std::bit_cast<std::array<std::uint8_t, sizeof(T)>>(std::isnan(x) ? std::numeric_limits<T>::quiet_NaN() : x);
    bytes.insert(bytes.end(), own.begin(), own.end());
  }
  return sha256(std::move(bytes));
}

}  // namespace qkv::cli
