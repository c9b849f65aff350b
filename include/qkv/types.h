// Element and index types that every other header uses. 16-bit floats are storage: they convert to and from float and
// do no arithmetic of their own.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace qkv::inline v0 {

/// Sizes, strides (in elements, never bytes) and positions. Signed, so that differences of positions are ordinary
/// numbers.
using Index = std::int64_t;

/// bfloat16: the upper half of a float (8 exponent bits, 7 fraction bits). Conversion to float is exact; from float it
/// rounds to nearest, ties to even, and too large numbers become infinity; a NaN stays NaN (quiet, sign and upper
/// payload kept).
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit constexpr BFloat16(float x) {
    const auto wide = std::bit_cast<std::uint32_t>(x);
    const bool nan = (wide & 0x7FFFFFFFU) > 0x7F800000U;
    const std::uint32_t half_ulp_to_even = 0x7FFFU + ((wide >> 16) & 1U);
    bits = static_cast<std::uint16_t>((nan ? wide | 0x400000U : wide + half_ulp_to_even) >> 16);
  }
  explicit constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE 754 binary16 (5 exponent bits, 10 fraction bits), subnormals included. Conversions behave as for BFloat16.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit constexpr Float16(float x) {
    const auto wide = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (wide >> 16) & 0x8000U, magnitude = wide & 0x7FFFFFFFU;
    std::uint32_t narrow = 0;
    if (magnitude > 0x7F800000U) {
      narrow = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
    } else if (magnitude >= 0x477FF000U) {  // 65520, half way between the largest number and the next power of two
      narrow = 0x7C00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: the sum's last bit is 2^-24, a subnormal's unit
      narrow =
          std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
    } else {
      const std::uint32_t half_ulp_to_even = 0xFFFU + ((magnitude >> 13) & 1U);
      narrow = (magnitude - ((127U - 15U) << 23) + half_ulp_to_even) >> 13;
    }
    bits = static_cast<std::uint16_t>(sign | narrow);
  }
  explicit constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1FU, fraction = bits & 0x3FFU;
    if (exponent == 0) {  // zero and subnormal: fraction * 2^-24, exact in f32
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F));
    }
    const std::uint32_t wide_exponent = exponent == 0x1F ? 0xFFU : exponent + (127U - 15U);
    return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);  // a NaN keeps its payload
  }
};

/// Types of stored numbers. In caches alone (kv_cache.h): kInt8, integers in -127 .. 127 times one scale a row; kInt4,
/// integers in -7 .. 7 times one scale for 32 of them, of which an element holds sixteen.
enum class StoredType : int { kF32, kF64, kBF16, kF16, kInt8, kInt4 };

constexpr Index stored_bytes(StoredType type) {
  return 0x812284 >> (4 * static_cast<int>(type)) & 15;  // a digit each: GCC writes a local table at each call
}

template <class T> consteval StoredType stored_as() {
  if constexpr (std::is_same_v<T, double>) return StoredType::kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return StoredType::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return StoredType::kF16;
  return StoredType::kF32;
}

/// The type in which numbers stored as T are added up and in which lse and weights are given: float for the 16-bit
/// types.
template <class T> using Accumulator =
    std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

}  // namespace qkv::inline v0
