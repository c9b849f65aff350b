#include "dispatch/linear_kernels.h"

namespace qkv {
inline namespace v0 {

const LinearKernelTable& linear_kernel_table(Isa isa) { return QKV_TABLE_OF(qkv_linear_kernels, isa); }

}  // namespace v0
}  // namespace qkv
