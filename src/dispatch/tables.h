// From an instruction set to one of the tables that a family of kernels exports, and from a table to its part for an element
// type. Not: which instruction set to take (core/context decides once).
#pragma once

#include <type_traits>

#include "qkv/context.h"

// The table NAME_<isa>; each family declares its own beside their type (kernels/*params.h). Where an instruction set has
// products of bf16 pairs, whose tables hold those alone, this is AVX-512's.
#if defined(__x86_64__)
#define QKV_TABLE_OF(name, isa) ((isa) == Isa::kScalar ? name##_scalar : (isa) == Isa::kAvx2 ? name##_avx2 : name##_avx512)
#elif defined(__aarch64__) && defined(__linux__)
#define QKV_TABLE_OF(name, isa)            \
  ((isa) == Isa::kNeon     ? name##_neon   \
   : (isa) == Isa::kSve256 ? name##_sve256 \
   : (isa) == Isa::kSve512 ? name##_sve512 \
                           : name##_scalar)
#elif defined(__aarch64__)
#define QKV_TABLE_OF(name, isa) ((isa) == Isa::kNeon ? name##_neon : name##_scalar)
#else
#define QKV_TABLE_OF(name, isa) (static_cast<void>(isa), name##_scalar)
#endif

namespace qkv {
inline namespace v0 {

constexpr bool has_bf16_pairs(Isa isa) { return isa == Isa::kAvx512Bf16 || isa == Isa::kAmx; }

/// A table's kernels for elements of type T. Some tables have none for 16 bits.
template <class T, class Table>
const auto& for_element(const Table& table) {
  if constexpr (std::is_same_v<T, float>) {
    return table.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return table.f64;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return table.bf16;
  } else {
    return table.f16;
  }
}

}  // namespace v0
}  // namespace qkv
