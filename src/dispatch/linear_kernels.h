// From an instruction set to its kernels of linear attention. Not: which one to take (core/context decides once).
#pragma once

#include <type_traits>

#include "kernels/linear_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const LinearKernelTable& linear_kernel_table(Isa isa);

template <class T>
const LinearKernels<T>& linear_kernels_of(Isa isa) {
  if constexpr (std::is_same_v<T, float>) {
    return linear_kernel_table(isa).f32;
  } else {
    return linear_kernel_table(isa).f64;
  }
}

}  // namespace v0
}  // namespace qkv
