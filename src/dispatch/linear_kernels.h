// From an instruction set to its kernels of linear attention. Not: which one to take (core/context decides once).
#pragma once

#include "dispatch/tables.h"
#include "kernels/linear_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

QKV_API const LinearKernelTable& linear_kernel_table(Isa isa);  // the tool asks for the length of chunks

template <class T>
const LinearKernels<T>& linear_kernels_of(Isa isa) {
  return for_element<T>(linear_kernel_table(isa));
}

}  // namespace v0
}  // namespace qkv
