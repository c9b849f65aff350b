// From a KeyValue to what is passed to kernels: one (sequence, head) of it. And what a call on it checks.
#pragma once

#include "attention/cache/storage.h"
#include "attention/mask/node.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

/// The first position of sequence b that is held.
Index first_held(const KeyValue& kv, Index b);

HeadKeys cached_head(const KeyValue& kv, Index b, Index g);

/// Throws ShapeError, OptionError or UnsupportedError if a call with q_len queries cannot read the cache.
void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options);

/// Throws OptionError if the mask chooses among keys hidden by a ring: keeps one and drops another. None of them, or all, is
/// what a mask says that a ring's window cuts.
void check_ring_mask(const char* function, const KeyValue& kv, const BoundMask& mask);

}  // namespace qkv::inline v0
