// The table of kernels on key/value caches.
#include "kernels/cache/decode.h"
#include "kernels/cache/params.h"
#include "kernels/export.h"

namespace qkv {
namespace {

template <class Q>
constexpr CacheKernels<Q> make_cache_kernels() {
  using Sum = Accumulator<Q>;
  return {cache_decode_chunk<Sum>, cache_decode_part_keys<Sum>, cache_decode_scratch_bytes<Sum>, decode_cached_part<Q>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(CacheTable, qkv_cache_kernels) = {qkv::make_cache_kernels<float>(),
                                             qkv::make_cache_kernels<double>(),
                                             qkv::make_cache_kernels<qkv::BFloat16>(),
                                             qkv::make_cache_kernels<qkv::Float16>(),
                                             qkv::store_any,
                                             qkv::read_any};
