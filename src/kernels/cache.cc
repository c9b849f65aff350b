// The table of decode's kernels, and of those that store and read rows.
#include "kernels/cache/params.h"
#include "kernels/decode/decode.h"
#include "kernels/export.h"

QKV_EXPORT(CacheTable, qkv_cache_kernels) = {qkv::make_decode_kernels<float>(),
    QKV_UNLESS_FLOAT_ONLY(qkv::make_decode_kernels<double>()), qkv::store_any, qkv::read_any};
