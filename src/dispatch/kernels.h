// From an instruction set to its kernels. Not: which one to take (core/context decides once).
#pragma once

#include <type_traits>

#include "kernels/params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

QKV_API const KernelTable& kernel_table(Isa isa);  // nn and lm are libraries of their own

/// For tests, before any context computes: kernels that take the place of AVX-512's until null gives it back.
QKV_API void stand_in_for_avx512(const KernelTable* table);

template <class T>
const Kernels<T>& kernels_of(Isa isa) {
  const KernelTable& table = kernel_table(isa);
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
