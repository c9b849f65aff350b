#include "dispatch/kernels.h"

namespace qkv {
inline namespace v0 {

namespace {

const KernelTable* avx512_stand_in = nullptr;

}  // namespace

void stand_in_for_avx512(const KernelTable* table) { avx512_stand_in = table; }

const KernelTable& kernel_table(Isa isa) {
  if (isa == Isa::kAvx512 && avx512_stand_in != nullptr) return *avx512_stand_in;
  return QKV_TABLE_OF(qkv_kernels, isa);
}

}  // namespace v0
}  // namespace qkv
