#include "dispatch/cache_kernels.h"

namespace qkv {
inline namespace v0 {

const CacheTable& cache_table(Isa isa) { return QKV_TABLE_OF(qkv_cache_kernels, isa); }

}  // namespace v0
}  // namespace qkv
