// From an instruction set to its kernels of second order. Not: which one to take (core/context decides once).
#pragma once

#include "dispatch/tables.h"
#include "kernels/second_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const SecondKernelTable& second_kernel_table(Isa isa);

template <class T>
const SecondKernels<T>& second_kernels_of(Isa isa) {
  return for_element<T>(second_kernel_table(isa));
}

}  // namespace v0
}  // namespace qkv
