// From a KeyValue to what is passed to kernels: one (sequence, head) of it, and the mask of a call that reads it. Not: the
// calls (cached_forward.cc), the cache itself (kv_cache.cc).
#pragma once

#include "attention/cache/storage.h"
#include "attention/mask/node.h"
#include "qkv/kv_cache.h"

namespace qkv {
inline namespace v0 {

/// The first position of sequence b that is held.
Index first_held(const KeyValue& kv, Index b);

CachedHead cached_head(const KeyValue& kv, Index b, Index g);

/// Throws ShapeError, OptionError or UnsupportedError if a call with q_len queries cannot read the cache.
void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options);

/// The mask of a call on a cache: each sequence has a Tk of its own, to which Align refers.
struct CachedMask {
  const Mask::Node* node;  // null: everything is kept
  Index batch, num_heads, q_len;
  const KeyValue* cache;
  const DenseSummaries* summaries;

  /// As sequence b sees it.
  BoundMask of(Index b) const { return {node, {batch, num_heads, q_len, cache->length(b), -1, summaries}}; }
};

/// Throws OptionError if the mask chooses among keys hidden by a ring: keeps one and drops another. None of them, or all, is
/// what a mask says that a ring's window cuts.
void check_ring_mask(const char* function, const CachedMask& mask);

/// Functions behind the kernels' TileMask; `mask` points at a CachedMask. Keys that a ring's window or a left-out beginning
/// hides are not kept either.
int cached_mask_tile(const void* mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* words);
void cached_mask_key_range(const void* mask, Index b, Index h, Index i0, Index ni, Index* begin, Index* end);
Index cached_mask_next_key(const void* mask, Index b, Index h, Index i0, Index ni, Index key);

}  // namespace v0
}  // namespace qkv
