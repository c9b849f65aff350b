// From an instruction set to its kernels of linear attention. Not: which one to take (core/context decides once).
#pragma once

#include "dispatch/tables.h"
#include "kernels/linear_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const LinearKernelTable& linear_kernel_table(Isa isa);

template <class T>
const LinearKernels<T>& linear_kernels_of(Isa isa) {
  return for_element<T>(linear_kernel_table(isa));
}

}  // namespace v0
}  // namespace qkv
