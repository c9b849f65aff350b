// From an instruction set to one of the tables that a family of kernels exports, and from a table to its part for an element
// type. Not: which instruction set to take (core/context decides once).
#pragma once

#include <type_traits>

#include "qkv/context.h"

// The table NAME_<isa>; each family declares its own beside their type (kernels/*params.h). QKV_PLAIN_TABLE_OF: of a family
// without products of bf16 pairs, which is compiled for AVX-512 once.
#if defined(__x86_64__)
#define QKV_PLAIN_TABLE_OF(name, isa) \
  ((isa) == Isa::kAvx512Bf16 || (isa) == Isa::kAvx512 ? name##_avx512 : (isa) == Isa::kAvx2 ? name##_avx2 : name##_scalar)
#define QKV_TABLE_OF(name, isa) ((isa) == Isa::kAvx512Bf16 ? name##_avx512bf16 : QKV_PLAIN_TABLE_OF(name, isa))
#elif defined(__aarch64__) && defined(__linux__)
#define QKV_PLAIN_TABLE_OF(name, isa)      \
  ((isa) == Isa::kNeon     ? name##_neon   \
   : (isa) == Isa::kSve256 ? name##_sve256 \
   : (isa) == Isa::kSve512 ? name##_sve512 \
                           : name##_scalar)
#define QKV_TABLE_OF(name, isa) QKV_PLAIN_TABLE_OF(name, isa)
#elif defined(__aarch64__)
#define QKV_PLAIN_TABLE_OF(name, isa) ((isa) == Isa::kNeon ? name##_neon : name##_scalar)
#define QKV_TABLE_OF(name, isa) QKV_PLAIN_TABLE_OF(name, isa)
#else
#define QKV_PLAIN_TABLE_OF(name, isa) (static_cast<void>(isa), name##_scalar)
#define QKV_TABLE_OF(name, isa) QKV_PLAIN_TABLE_OF(name, isa)
#endif

namespace qkv {
inline namespace v0 {

/// Whose kernels elements of type T are given: AVX512-BF16's tables hold what its products of bf16 pairs are for, the rest is
/// AVX-512's.
template <class T>
constexpr Isa isa_for(Isa isa) {
  return isa == Isa::kAvx512Bf16 && !std::is_same_v<T, BFloat16> ? Isa::kAvx512 : isa;
}

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
