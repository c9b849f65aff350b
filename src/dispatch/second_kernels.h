// From an instruction set to its kernels of second order. Not: which one to take (core/context decides once).
#pragma once

#include <type_traits>

#include "kernels/second_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const SecondKernelTable& second_kernel_table(Isa isa);

template <class T>
const SecondKernels<T>& second_kernels_of(Isa isa) {
  if constexpr (std::is_same_v<T, float>) {
    return second_kernel_table(isa).f32;
  } else {
    return second_kernel_table(isa).f64;
  }
}

}  // namespace v0
}  // namespace qkv
