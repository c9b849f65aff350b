// From an instruction set to its kernels that look at weights. Not: which one to take (core/context decides once).
#pragma once

#include <type_traits>

#include "kernels/capture_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const CaptureKernelTable& capture_kernel_table(Isa isa);

template <class T>
const CaptureKernels<T>& capture_kernels_of(Isa isa) {
  const CaptureKernelTable& table = capture_kernel_table(isa);
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
