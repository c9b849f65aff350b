// From an instruction set to its kernels. Not: which one to take (core/context decides once).
#pragma once

#include "dispatch/tables.h"
#include "kernels/params.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {

QKV_API const KernelTable& kernel_table(Isa isa);  // nn and lm are libraries of their own

/// For tests, before any context computes: kernels of bf16 pairs that take the place of AVX-512's until null gives it back.
QKV_API void stand_in_for_avx512(const KernelTable* pairs);

template <class T>
const Kernels<T>& kernels_of(Isa isa) {
  return for_element<T>(kernel_table(isa));
}

}  // namespace v0
}  // namespace qkv
