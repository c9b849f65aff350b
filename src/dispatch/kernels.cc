#include "dispatch/kernels.h"

namespace qkv {
inline namespace v0 {

namespace {

const KernelTable* avx512_stand_in = nullptr;

#if defined(__x86_64__)
/// AVX-512's table, with the products of bf16 pairs that `pairs` holds in their place.
KernelTable with_pairs(const KernelTable& pairs) {
  KernelTable table = qkv_kernels_avx512;
  table.bf16.forward_scratch_bytes = pairs.bf16.forward_scratch_bytes;
  table.bf16.backward_scratch_bytes = pairs.bf16.backward_scratch_bytes;
  table.bf16.forward = pairs.bf16.forward;
  table.bf16.backward = pairs.bf16.backward;
  table.bf16.delta = pairs.bf16.delta;
  table.peak.dot_bf16 = pairs.peak.dot_bf16;
  return table;
}
#endif

}  // namespace

void stand_in_for_avx512([[maybe_unused]] const KernelTable* pairs) {
#if defined(__x86_64__)
  static KernelTable table;
  if (pairs != nullptr) table = with_pairs(*pairs);
  avx512_stand_in = pairs == nullptr ? nullptr : &table;
#endif
}

const KernelTable& kernel_table(Isa isa) {
  if (isa == Isa::kAvx512 && avx512_stand_in != nullptr) return *avx512_stand_in;
#if defined(__x86_64__)
  static const KernelTable avx512bf16 = with_pairs(qkv_kernels_avx512bf16), amx = with_pairs(qkv_kernels_amx);
  if (has_bf16_pairs(isa)) return isa == Isa::kAmx ? amx : avx512bf16;
#endif
  return QKV_TABLE_OF(qkv_kernels, isa);
}

}  // namespace v0
}  // namespace qkv
