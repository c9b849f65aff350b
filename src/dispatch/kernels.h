// From an instruction set to its kernels. Not: which one to take (core/context decides once).
#pragma once

#include "kernels/params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

QKV_API const KernelTable& kernel_table(Isa isa);  // nn and lm are libraries of their own

template <class T>
const Kernels<T>& kernels_of(Isa isa) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernel_table(isa).f32;
  } else {
    return kernel_table(isa).f64;
  }
}

}  // namespace v0
}  // namespace qkv
