#include "dispatch/capture_kernels.h"

namespace qkv {
inline namespace v0 {

#if defined(__x86_64__)
namespace {

/// AVX-512's table, with the forward kernel of bf16 pairs.
CaptureKernelTable with_pairs(const CaptureKernelTable& pairs) {
  CaptureKernelTable table = qkv_capture_kernels_avx512;
  table.bf16.forward = pairs.bf16.forward;
  return table;
}

}  // namespace
#endif

const CaptureKernelTable& capture_kernel_table(Isa isa) {
#if defined(__x86_64__)
  static const CaptureKernelTable avx512bf16 = with_pairs(qkv_capture_kernels_avx512bf16),
                                  amx = with_pairs(qkv_capture_kernels_amx);
  if (has_bf16_pairs(isa)) return isa == Isa::kAmx ? amx : avx512bf16;
#endif
  return QKV_TABLE_OF(qkv_capture_kernels, isa);
}

}  // namespace v0
}  // namespace qkv
