#include "dispatch/capture_kernels.h"

namespace qkv {
inline namespace v0 {

const CaptureKernelTable& capture_kernel_table(Isa isa) { return QKV_TABLE_OF(qkv_capture_kernels, isa); }

}  // namespace v0
}  // namespace qkv
