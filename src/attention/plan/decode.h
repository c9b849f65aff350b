// Forward attention of few queries over many keys: which calls take it, and how the keys are cut into parts. Not: how a part is
// computed (decode_job.h), the inner loops (kernels/decode/decode.h).
#pragma once

#include "attention/call/problem.h"

namespace qkv::inline v0 {

/// Below this many keys the tiled kernel's start is cheaper.
inline constexpr Index kDecodeMinKeys = 64;

/// True for calls that decode computes. Decided by shape and Bits alone: neither threads nor outputs requested beside out change
/// bits. Decode sums a row otherwise than the tiled kernel. `rows`: queries of the whole problem that share a key/value head, so
/// that a part of its rows has the same bits.
inline bool decode_suits(Index rows, Index kv_len, bool invariant, Index min_keys = kDecodeMinKeys) {
  return !invariant && rows >= 1 && rows <= kDecodeRowLimit && kv_len >= min_keys;
}
template <class T>
bool decode_suits(const Problem<T>& p) {
  // On a cache, at any length: a sequence is then bit-identical alone and among longer ones.
  return decode_suits(p.queries * p.group_size(), p.kv_len, p.invariant, p.cache == nullptr ? kDecodeMinKeys : 1);
}

/// How one call is split. Parts of the keys are computed by any thread and merged in the order of keys.
struct DecodeShape {
  Index rows, chunk, part_keys, parts;
  std::size_t scratch_bytes, state_bytes;
  bool mask_differs;  // heads of a group may see different masks

  /// A worker's scratch and the state of its part.
  std::size_t worker_bytes() const { return scratch_bytes + state_bytes; }
};
template <class T>
DecodeShape decode_shape(const Problem<T>& p);

}  // namespace qkv::inline v0
