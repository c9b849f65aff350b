#include "dispatch/kernels.h"

namespace qkv {
inline namespace v0 {

namespace {

const KernelTable* avx512_stand_in = nullptr;

}  // namespace

void stand_in_for_avx512(const KernelTable* table) { avx512_stand_in = table; }

const KernelTable& kernel_table(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512 && avx512_stand_in != nullptr) return *avx512_stand_in;
  if (isa == Isa::kAvx512Bf16) return qkv_kernels_avx512bf16;
  if (isa == Isa::kAvx512) return qkv_kernels_avx512;
  if (isa == Isa::kAvx2) return qkv_kernels_avx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return qkv_kernels_neon;
#if defined(__linux__)
  if (isa == Isa::kSve256) return qkv_kernels_sve256;
  if (isa == Isa::kSve512) return qkv_kernels_sve512;
#endif
#endif
  static_cast<void>(isa);
  return qkv_kernels_scalar;
}

}  // namespace v0
}  // namespace qkv
