#include "dispatch/cache_kernels.h"

namespace qkv {
inline namespace v0 {

const CacheTable& cache_table(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16) return qkv_cache_kernels_avx512bf16;
  if (isa == Isa::kAvx512) return qkv_cache_kernels_avx512;
  if (isa == Isa::kAvx2) return qkv_cache_kernels_avx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return qkv_cache_kernels_neon;
#if defined(__linux__)
  if (isa == Isa::kSve256) return qkv_cache_kernels_sve256;
  if (isa == Isa::kSve512) return qkv_cache_kernels_sve512;
#endif
#endif
  static_cast<void>(isa);
  return qkv_cache_kernels_scalar;
}

}  // namespace v0
}  // namespace qkv
