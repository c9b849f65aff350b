// Caches filled as a server would: in chunks of changing size, pages in no order. Not: what attention must give on them.
#pragma once

#include <string>
#include <vector>

#include "qkv/kv_cache.h"
#include "support/random.h"
#include "support/storage.h"

namespace qkv::test {

enum class CacheKind { kNone, kContiguous, kPages1, kPages16, kPages100, kRing };
inline constexpr std::array kCacheNames = {"none", "contiguous", "pages1", "pages16", "pages100", "ring"};

inline constexpr std::array kStorageNames = {"f32", "f64", "bf16", "f16", "int8"};

inline std::string cache_name(CacheKind kind) { return kCacheNames[static_cast<std::size_t>(kind)]; }

template <class T>
constexpr CacheStorage kStorageOf = std::is_same_v<T, double>     ? CacheStorage::kF64
                                    : std::is_same_v<T, BFloat16> ? CacheStorage::kBF16
                                    : std::is_same_v<T, Float16>  ? CacheStorage::kF16
                                                                  : CacheStorage::kF32;

/// An empty cache for `batch` sequences of at most `most` tokens. A ring sees the last `window` tokens, and the first.
inline KVCache empty_cache(CacheKind kind, CacheStorage storage, Index batch, Index num_kv_heads, Index head_dim,
                           Index v_head_dim, Index most, Index window = 0, Index max_append = 0, Index first = 0) {
  KVCacheConfig config{.num_kv_heads = num_kv_heads, .head_dim = head_dim, .v_head_dim = v_head_dim, .storage = storage};
  config.sequences = batch;
  config.capacity = std::max<Index>(most, 1);
  if (kind == CacheKind::kRing) {
    config.layout = CacheLayout::kRing;
    config.window = window;
    config.max_append = max_append;
    config.first = first;
    config.capacity = 0;
  } else if (kind != CacheKind::kContiguous) {
    config.layout = CacheLayout::kPaged;
    config.page_size = kind == CacheKind::kPages1 ? 1 : kind == CacheKind::kPages16 ? 16 : 100;
    config.pages = std::max<Index>(1, batch * ((config.capacity + config.page_size - 1) / config.page_size) + 3);
  }
  return KVCache(config);
}

/// Appends tokens [0, length) of k and v in chunks of 1 to 40 tokens, all sequences in turn, so that pages interleave.
template <class T>
void fill_cache(KVCache& cache, const View<T, 4>& k, const View<T, 4>& v, const std::vector<Index>& lengths, std::uint64_t seed,
                Index largest_chunk = 40) {
  Random random(seed);
  std::vector<Index> done(lengths.size(), 0);
  for (bool any = true; any;) {
    any = false;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const Index left = lengths[b] - done[b], n = std::min(left, 1 + random.below(largest_chunk));
      if (n == 0) continue;
      const Index s = cache.sequences()[b], first = static_cast<Index>(b);
      const auto part = [&](const View<T, 4>& rows) {
        return View<const T, 4>(rows.sliced(0, first, first + 1).sliced(2, done[b], done[b] + n));
      };
      cache.append({&s, 1}, part(k), part(v));
      done[b] += n;
      any = true;
    }
  }
}

/// A cache that holds all of k and v.
template <class T>
KVCache cache_of(CacheKind kind, CacheStorage storage, const View<T, 4>& k, const View<T, 4>& v, std::uint64_t seed = 1) {
  KVCache cache = empty_cache(kind, storage, k.size(0), k.size(1), k.size(3), v.size(3), k.size(2));
  fill_cache(cache, k, v, std::vector<Index>(static_cast<std::size_t>(k.size(0)), k.size(2)), seed);
  return cache;
}

}  // namespace qkv::test
