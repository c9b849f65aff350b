#include "dispatch/second_kernels.h"

namespace qkv {
inline namespace v0 {

const SecondKernelTable& second_kernel_table(Isa isa) { return QKV_TABLE_OF(qkv_second_kernels, isa); }

}  // namespace v0
}  // namespace qkv
