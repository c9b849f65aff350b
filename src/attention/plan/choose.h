// What computes a call: the only place that says tiles, decode, lists of keys or grouped rows. Forward, backward, keys in
// chunks and attention_plan ask it.
#pragma once

#include "attention/plan/listed.h"

namespace qkv::inline v0 {

/// How rows of out are computed.
enum class How {
  kTiles,   ///< tiles of queries against chunks of keys
  kDecode,  ///< few queries: all heads of a group together, the keys in parts
  kLists    ///< of each query only the keys that its mask lists
};

/// Whether decode computes a call. Decided by shape and Bits alone: neither threads nor outputs requested beside out change bits.
/// Decode sums a row otherwise than tiles do. `rows`: queries of the whole problem that share a key/value head, so that a part of
/// its rows has the same bits.
inline bool decode_suits(Index rows, Index kv_len, bool invariant, Index min_keys = kDecodeMinKeys) {
  return !invariant && rows >= 1 && rows <= kDecodeRowLimit && kv_len >= min_keys;
}

template <class T>
How choose(const Problem<T>& p, const Listed<T>& lists) {
  if (lists.applies()) return How::kLists;
  // On a cache, at any length: a sequence is then bit-identical alone and among longer ones.
  const Index min_keys = p.cache == nullptr ? kDecodeMinKeys : 1;
  return decode_suits(p.queries * p.group_size(), p.kv_len, p.invariant, min_keys) ? How::kDecode : How::kTiles;
}

/// How the keys of one item's rows are cut for decode's kernels: parts, computed by any thread, are merged in the order of keys.
struct KeyParts {
  Index rows, chunk, part_keys, parts;
  std::size_t scratch_bytes, state_bytes;
  bool mask_differs;  // heads of a group may see different masks
};
template <class T>
KeyParts decode_parts(const Problem<T>& p);
/// Of the heads that share a list. More of them than decode takes are the rows of a tile, whose keys are one part.
template <class T>
KeyParts list_parts(const Problem<T>& p, const Listed<T>& lists);

/// Whether the queries of all heads that share K and V become those of one head, so that tiles read K and V once: few queries with
/// bits that no other row changes (Bits::kInvariant), whose heads differ in nothing but their rows.
template <class T>
bool groups_rows(const Problem<T>& p, const AttentionOutputs<T>& outputs);
/// A group's heads as one: heads of the result are groups of p, which must outlive it.
template <class T>
Problem<T> grouped_problem(const Problem<T>& p);
/// [B, H, Tq, ..] as [B, Hkv, group * Tq, ..]; null stays null.
template <class T, int kRank>
View<T, kRank> group_rows(const View<T, kRank>& x, Index group) {
  auto sizes = x.sizes(), strides = x.strides();
  if (sizes[2] == 1) strides[2] = strides[1];
  sizes[1] /= group;
  sizes[2] *= group;
  strides[1] *= group;
  return {x.data(), sizes, strides};
}

template <class T>
AttentionOutputs<T> group_rows(const AttentionOutputs<T>& x, Index group) {
  return {.out = group_rows(x.out, group), .lse = group_rows(x.lse, group), .lse_low = group_rows(x.lse_low, group)};
}

/// The rows of whole strips that hold those of a call (placed_rows.h), counted in the whole problem.
struct StripRows {
  Index before, count;  // rows added before the call's first; rows with what is added
  bool added;           // any
};
/// Forward; decode takes all rows of a problem at once. By lists of keys a row's bits are those that it has alone, but weights
/// beside out are computed by strips.
template <class T>
StripRows rows_of_forward(const Problem<T>& p, bool wants_out, bool wants_weights);
/// Backward; by lists too, because the maxima of a strip are computed again for an lse that was rounded. With a negative scale a
/// row of dq without keys is +0 or -0, by whether its tile meets any. (With a scale of 0 all of dq is zero, of either sign.)
template <class T>
StripRows rows_of_backward(const Problem<T>& p);

}  // namespace qkv::inline v0
