// From an instruction set to its kernels that look at weights. Not: which one to take (core/context decides once).
#pragma once

#include "dispatch/tables.h"
#include "kernels/capture_params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

const CaptureKernelTable& capture_kernel_table(Isa isa);

template <class T>
const CaptureKernels<T>& capture_kernels_of(Isa isa) {
  return for_element<T>(capture_kernel_table(isa));
}

}  // namespace v0
}  // namespace qkv
