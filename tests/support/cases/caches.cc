#include "support/cases/caches.h"

#include <algorithm>

#include "support/random.h"

namespace qkv::test {

KVCache empty_cache(CacheKind kind, CacheStorage storage, Index batch, Index num_kv_heads, Index head_dim,
    Index v_head_dim, Index most, Index window, Index max_append, Index first) {
  KVCacheConfig config{
      .num_kv_heads = num_kv_heads, .head_dim = head_dim, .v_head_dim = v_head_dim, .storage = storage};
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

template <class T> void fill_cache(KVCache& cache, const View<T, 4>& k, const View<T, 4>& v,
    const std::vector<Index>& lengths, std::uint64_t seed, Index largest_chunk) {
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

template <class T>
KVCache cache_of(CacheKind kind, CacheStorage storage, const View<T, 4>& k, const View<T, 4>& v, std::uint64_t seed) {
  KVCache cache = empty_cache(kind, storage, k.size(0), k.size(1), k.size(3), v.size(3), k.size(2));
  fill_cache(cache, k, v, std::vector<Index>(static_cast<std::size_t>(k.size(0)), k.size(2)), seed);
  return cache;
}

#define QKV_TEST_CACHES(T)                                                                              \
  template void fill_cache<T>(                                                                          \
      KVCache&, const View<T, 4>&, const View<T, 4>&, const std::vector<Index>&, std::uint64_t, Index); \
  template KVCache cache_of<T>(CacheKind, CacheStorage, const View<T, 4>&, const View<T, 4>&, std::uint64_t);
QKV_TEST_TYPES(QKV_TEST_CACHES)

}  // namespace qkv::test
