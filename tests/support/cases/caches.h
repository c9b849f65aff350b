// Caches filled as a server would: in chunks of changing size, with pages in no order.
#pragma once

#include <string>
#include <vector>

#include "qkv/kv_cache.h"
#include "support/storage.h"

namespace qkv::test {

enum class CacheKind { kNone, kContiguous, kPages1, kPages16, kPages100, kRing };
inline constexpr std::array kCacheNames = {"none", "contiguous", "pages1", "pages16", "pages100", "ring"};

inline constexpr std::array kStorageNames = {"f32", "f64", "bf16", "f16", "int8", "int4"};

inline std::string cache_name(CacheKind kind) { return kCacheNames[static_cast<std::size_t>(kind)]; }

template <class T> constexpr CacheStorage kStorageOf = std::is_same_v<T, double>     ? CacheStorage::kF64
                                                       : std::is_same_v<T, BFloat16> ? CacheStorage::kBF16
                                                       : std::is_same_v<T, Float16>  ? CacheStorage::kF16
                                                                                     : CacheStorage::kF32;

/// An empty cache for `batch` sequences of at most `most` tokens. A ring sees the last `window` tokens, and the first.
KVCache empty_cache(CacheKind kind, CacheStorage storage, Index batch, Index num_kv_heads, Index head_dim,
    Index v_head_dim, Index most, Index window = 0, Index max_append = 0, Index first = 0);

/// Appends tokens [0, length) of k and v in chunks of 1 to 40 tokens, all sequences in turn, so that pages interleave.
template <class T> void fill_cache(KVCache& cache, const View<T, 4>& k, const View<T, 4>& v,
    const std::vector<Index>& lengths, std::uint64_t seed, Index largest_chunk = 40);

/// A cache that holds all of k and v.
template <class T> KVCache cache_of(
    CacheKind kind, CacheStorage storage, const View<T, 4>& k, const View<T, 4>& v, std::uint64_t seed = 1);

}  // namespace qkv::test
