// Rows of keys and values that a cache is given and gives back, and a small cache for them.
#pragma once

#include <vector>

#include "qkv/kv_cache.h"
#include "support/random.h"

namespace qkv::test {

inline constexpr Index kHeads = 2, kWidth = 5, kValueWidth = 3;

/// Rows [n, Hkv * (D + Dv)] of distinct numbers.
using Row = std::vector<float>;

struct Rows {
  Tensor<float> k, v;  // [B, Hkv, n, D], [B, Hkv, n, Dv]
  Rows(Index batch, Index n) : k({batch, kHeads, n, kWidth}), v({batch, kHeads, n, kValueWidth}) {}

  Row row(Index b, Index j) const {
    Row all;
    const View<const float, 4> keys = k, values = v;
    for (Index g = 0; g < kHeads; ++g) {
      for (Index d = 0; d < kWidth; ++d) all.push_back(keys(b, g, j, d));
      for (Index d = 0; d < kValueWidth; ++d) all.push_back(values(b, g, j, d));
    }
    return all;
  }
};

inline Rows random_rows(Index batch, Index n, Random& random) {
  Rows rows(batch, n);
  for (Tensor<float>* t : {&rows.k, &rows.v}) {
    for (float& x : t->span()) x = static_cast<float>(random.symmetric());
  }
  return rows;
}

/// The cache's rows of tokens [begin, end) of a sequence; -1: to its end.
inline std::vector<Row> held(const KVCache& cache, Index sequence, Index begin = 0, Index end = -1) {
  const Index n = (end < 0 ? cache.length(sequence) : end) - begin;
  Rows rows(1, n);
  if (n > 0) {
    cache.read(sequence, begin, View<float, 3>(rows.k.data(), {kHeads, n, kWidth}),
        View<float, 3>(rows.v.data(), {kHeads, n, kValueWidth}));
  }
  std::vector<Row> all;
  for (Index j = 0; j < n; ++j) all.push_back(rows.row(0, j));
  return all;
}

inline KVCacheConfig small_config(CacheLayout layout) {
  KVCacheConfig config{.num_kv_heads = kHeads, .head_dim = kWidth, .v_head_dim = kValueWidth};
  config.layout = layout;
  config.sequences = 2;
  config.max_sequences = 5;
  config.capacity = 40;
  if (layout == CacheLayout::kPaged) {
    config.page_size = 4;
    config.pages = 25;
  }
  return config;
}

}  // namespace qkv::test
