// A KVCacheConfig: checks, defaults, and pages.
#pragma once

#include <algorithm>
#include <tuple>

#include "core/check.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

inline Index tokens_of_page(const KVCacheConfig& c) {
  if (c.layout == CacheLayout::kPaged) return c.page_size;
  return c.layout == CacheLayout::kRing ? c.window + c.max_append - 1 : c.capacity;
}
/// A ring's pinned tokens lie behind those that are overwritten.
inline Index rows_of_page(const KVCacheConfig& c) { return tokens_of_page(c) + c.first; }
inline Index pages_of_sequence(const KVCacheConfig& c) {
  if (c.layout != CacheLayout::kPaged) return 1;
  return c.capacity == 0 ? c.pages : std::min(c.pages, (c.capacity + c.page_size - 1) / c.page_size);
}

/// The config with its defaults filled in. Throws OptionError.
inline KVCacheConfig checked(KVCacheConfig c) {
  constexpr const char* function = "KVCache";
  if (c.v_head_dim == 0) c.v_head_dim = c.head_dim;
  if (c.max_sequences == 0) c.max_sequences = c.sequences;
  check<OptionError>(c.storage >= CacheStorage::kF32 && c.storage <= CacheStorage::kInt4 &&
                         c.layout >= CacheLayout::kContiguous && c.layout <= CacheLayout::kPaged,
      function, "storage and layout must be values of their types: got ", static_cast<int>(c.storage), ", ",
      static_cast<int>(c.layout));
  check<OptionError>(c.num_kv_heads >= 1 && c.head_dim >= 1 && c.v_head_dim >= 1, function,
      "num_kv_heads, head_dim and v_head_dim must be at least 1: got ", c.num_kv_heads, ", ", c.head_dim, ", ",
      c.v_head_dim);
  check<OptionError>(!c.values_in_keys || c.v_head_dim <= c.head_dim, function,
      "with values_in_keys v is the first columns of k, so v_head_dim must be at most head_dim: got ", c.v_head_dim,
      ", ", c.head_dim);
  check<OptionError>(
      c.storage != CacheStorage::kInt4 || !c.values_in_keys || c.v_head_dim == c.head_dim || c.v_head_dim % 128 == 0,
      function, "with values_in_keys and int4 v_head_dim must be a multiple of 128, or head_dim: got ", c.v_head_dim);
  check<OptionError>(c.sequences >= 0 && c.max_sequences >= std::max<Index>(1, c.sequences), function,
      "max_sequences must be at least 1 and at least sequences: got ", c.max_sequences, " for ", c.sequences);
  if (c.layout == CacheLayout::kContiguous) {
    check<OptionError>(
        c.capacity >= 1, function, "a contiguous cache needs a capacity of at least 1 token: got ", c.capacity);
  } else if (c.layout == CacheLayout::kRing) {
    check<OptionError>(c.window >= 1 && c.max_append >= 1, function,
        "a ring needs a window and max_append of at least 1: got ", c.window, ", ", c.max_append);
  } else {
    check<OptionError>(c.page_size >= 1 && c.pages >= 1 && c.capacity >= 0, function,
        "a paged cache needs pages of at least 1 token, at least 1 of them, and a capacity that is not negative: got "
        "page_size ",
        c.page_size, ", pages ", c.pages, ", capacity ", c.capacity);
  }
  check<OptionError>(c.first >= 0, function, "first must not be negative: got ", c.first);
  const bool ring = c.layout == CacheLayout::kRing, paged = c.layout == CacheLayout::kPaged;
  const KVCacheConfig none;
  const std::tuple<const char*, Index KVCacheConfig::*, bool> of_layouts[] = {
      {"window is of a ring", &KVCacheConfig::window, ring},
      {"max_append is of a ring", &KVCacheConfig::max_append, ring},
      {"first is of a ring", &KVCacheConfig::first, ring},
      {"capacity is not of a ring", &KVCacheConfig::capacity, !ring},
      {"page_size is of a paged cache", &KVCacheConfig::page_size, paged},
      {"pages is of a paged cache", &KVCacheConfig::pages, paged}};
  for (const auto& [what, member, reads] : of_layouts)
    check<OptionError>(
        reads || c.*member == none.*member, function, what, ": leave it at ", none.*member, ": got ", c.*member);
  // Sums and products of these do not overflow; memory that cannot be had is reported where it is allocated.
  for (const Index n : {c.num_kv_heads, c.head_dim, c.v_head_dim, c.max_sequences, c.capacity, c.window, c.max_append,
           c.first, c.page_size, c.pages}) {
    check<OptionError>(n < Index{1} << 40, function, "sizes must be below 2^40: got ", n);
  }
  const Index rows[] = {c.layout == CacheLayout::kPaged ? c.pages : c.max_sequences, rows_of_page(c), c.num_kv_heads,
      std::max(c.head_dim, c.v_head_dim)};
  const Index table[] = {c.max_sequences, pages_of_sequence(c)};
  checked_count(rows);
  checked_count(table);
  return c;
}

}  // namespace qkv::inline v0
