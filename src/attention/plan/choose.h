// Chooses what computes a call, here alone: tiles, decode, lists of keys or grouped rows. Forward, backward, keys
// in chunks and attention_plan ask it.
#pragma once

#include "attention/plan/listed.h"

namespace qkv::inline v0 {

/// How rows of out are computed.
enum class How {
  kTiles,   ///< tiles of queries against chunks of keys
  kDecode,  ///< few queries: all heads of a group together, the keys in parts
  kLists    ///< of each query only the keys that its mask lists
};

/// Decided by shape and Bits alone: neither threads nor outputs requested beside out change bits. Decode sums a row
/// otherwise than tiles do, and counts all queries of the whole problem, so that a part of its rows has the same bits.
How choose(const Problem& p, const Listed& lists);

/// How the keys of one item's rows are cut for decode's kernels: parts, computed by any thread, are merged in the order
/// of keys.
struct KeyParts {
  Index rows, chunk, part_keys, parts;
  std::size_t scratch_bytes, state_bytes;
  bool mask_differs;  // heads of a group may see different masks
};
/// The keys that may be attended from head h of sequence b, and the parts that have some of them; part 0 where there
/// are none.
Positions live_keys(const Problem& p, Index b, Index h);
struct PartRange {
  Index first = 0, last = 0;

  PartRange(const Positions& live, Index part_keys) {
    if (live.begin >= live.end) return;
    first = live.begin / part_keys;
    last = (live.end - 1) / part_keys;
  }
};
/// As many parts as the head with the most live ones has.
KeyParts decode_parts(const Problem& p, Index first_sequence, Index sequences);
/// Of the heads that share a list. More of them than decode takes are the rows of a tile, whose keys are one part.
KeyParts list_parts(const Problem& p, const Listed& lists);

/// Whether the queries of all heads that share K and V become those of one head, so that tiles read K and V once: few
/// queries with bits that no other row changes (Bits::kInvariant), whose heads differ in nothing but their rows.
bool groups_rows(const Problem& p, const Outputs& outputs);
/// A group's heads as one: heads of the result are groups of p, which must outlive it.
Problem grouped_problem(const Problem& p);
Outputs grouped_outputs(const Outputs& outputs, Index group);

/// The rows of whole strips that hold those of a call (part_rows.h), counted in the whole problem.
struct StripRows {
  Index before, count;  // rows added before the call's first; rows with what is added
  bool added;           // any
};
/// Forward; decode takes all rows of a problem at once. By lists of keys a row's bits are those that it has alone, but
/// weights beside out are computed by strips.
StripRows rows_of_forward(const Problem& p, bool wants_out, bool wants_weights);
/// Backward; by lists too, because the maxima of a strip are computed again for an lse that was rounded. With a
/// negative scale a row of dq without keys is +0 or -0, by whether its tile meets any. (With a scale of 0 all of dq is
/// zero, of either sign.) With invariant bits by whole tiles, over which dk and dv are summed.
StripRows rows_of_backward(const Problem& p);

}  // namespace qkv::inline v0
