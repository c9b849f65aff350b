#include "dispatch/kernels.h"

namespace qkv {
inline namespace v0 {

const KernelTable& kernel_table(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return qkv_kernels_avx512;
  if (isa == Isa::kAvx2) return qkv_kernels_avx2;
#endif
  static_cast<void>(isa);
  return qkv_kernels_scalar;
}

}  // namespace v0
}  // namespace qkv
