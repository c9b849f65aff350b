// Parameters of the attention kernels, as plain data: pointers, strides in elements, counts. And their table of
// functions. Letters: Tq, Tk, D, Dv as in attention.h. A strip is as many queries as two vectors have lanes, one query
// per lane. A chunk is key_tile keys, counted from key 0. A lane mask is one uint32 per key of a tile: bit i is set
// where query lane i may attend the key. Sum is the type of sums, lse and weights; rows of q, k, v and out may be
// stored otherwise (keys.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ahead.h"
#include "kernels/keys.h"
#include "qkv/types.h"

namespace qkv {

enum MaskVerdict : int { kTileEmpty = 0, kTilePartial = 1, kTileFull = 2 };

/// The mask of one (batch, head), behind a function pointer so that kernels know no mask. Null function: everything is
/// kept.
struct TileMask {
  /// Verdict of queries [i0, i0 + ni) x keys [j0, j0 + nj); fills lane_mask[0..nj) only when the verdict is
  /// kTilePartial.
  int (*tile)(
      const void* mask, Index batch, Index head, Index i0, Index ni, Index j0, Index nj, std::uint32_t* lane_mask);
  /// Keys [*begin, *end) that any of the queries might attend.
  void (*key_range)(const void* mask, Index batch, Index head, Index i0, Index ni, Index* begin, Index* end);
  const void* mask;
  Index batch, head;
  /// The first key at or after `key` that any of the queries might attend; kv_len or more: none. Lets kernels skip
  /// empty chunks without asking for each verdict. Null: unknown.
  Index (*next_key)(const void* mask, Index batch, Index head, Index i0, Index ni, Index key);
};

/// The bias of one (batch, head); strides of 0 repeat. Null data: none.
template <class Sum> struct TileBias {
  const Sum* data;  // [Tq, Tk]
  Index row_stride, column_stride;
};

/// Dropout of one (batch, head): Philox key and third counter word, see attention.h.
struct TileDropout {
  std::uint32_t threshold;  // 0: off; 65536: everything is dropped
  std::uint32_t key0, key1, sequence_head;
};

/// A callback that changes scores, in natural units, behind a function pointer. Null function: none.
template <class Sum> struct TileScoreMod {
  /// For queries [i0, i0 + ni) x keys [j0, j0 + nj): replaces scores[i * row + j * column] by the callback's result and
  /// sets slopes[i * slope_row + j * slope_column] to its derivative; slopes null: not wanted.
  void (*apply)(const void* mod, Index batch, Index head, Index i0, Index ni, Index j0, Index nj, Sum* scores,
      Index row, Index column, Sum* slopes, Index slope_row, Index slope_column);
  const void* mod;
  Index batch, head;
};

/// Turns q.k into scores, for one (batch, head), whatever q and k are stored as.
template <class Sum> struct ScoreParams {
  Index kv_len, head_dim;
  Sum scale;
  Sum softcap;  // 0: off
  TileMask mask;
  TileBias<Sum> bias;
  TileDropout dropout;
  Index key_tile;
  const Sum* position;    // added to a given bias, indexed by key - query; null: nothing
  TileScoreMod<Sum> mod;  // after soft cap and bias, before the mask; a result of -inf is not kept
  const Sum*
      sink;  // [heads of the group], sink_stride apart: a logit in every row's softmax sum, without a value; null: none
  Index sink_stride;
  bool invariant = false;  // a row's bits are those of the row alone: forward depends on no other lane's mask
};

/// The matrix that is written: the softmax before or after dropout, or the scores that it is taken of.
enum class Weights { kSoftmax, kApplied, kScores };

/// A query tile that meets its keys in several calls, by ascending keys: what one call leaves for the next. Starts as
/// row_max -inf, row_sum 0, attended 0, by_maximum the lanes that may not take the fast path (softmax.h). Bits are
/// those of one call on all keys.
template <class Sum> struct CarriedRows {
  Index k_begin, k_end;  // this call's keys: whole chunks, but for the last ones. No other row of k and v is read
  Sum *out, *row_max, *row_sum;  // [strips][Dv][strip], [strips][strip] twice: not yet divided, as in ForwardScratch
  std::uint32_t *attended, *by_maximum;  // [strips]
  // [strips]: null: keys follow, and out and lse are not written. Otherwise the tile ends here, and gets the lanes
  // whose out holds NaN or infinity: where there are any, the strip is computed once more from the start, with these
  // lanes by_maximum.
  std::uint32_t* overflown;
};

/// Forward of queries [q_begin, q_begin + q_count) of one (batch, head). Rows of q, out and weights are those of these
/// queries.
template <class Sum> struct ForwardTile {
  ScoreParams<Sum> scores;
  Rows q;  // [q_count, D]
  HeadKeys keys;
  Rows out{};  // [q_count, Dv]; null: values are not read
  Index v_head_dim, q_begin, q_count;
  Sum* lse{};                   // [q_count]: natural log; always written
  Sum* lse_low{};               // [q_count] or null: the rounding error of lse
  Sum *row_max2{}, *row_sum{};  // [q_count] or null: lse = ln2 * row_max2 + log(row_sum)
  Sum* weights{};               // [q_count, Tk] or null: also write the weights
  Index weights_row_stride{};
  Weights kind{};  // of weights
  // Where weights and out are given without dropout and a strip's exponentials fit in cache, they are kept in one pass
  // over the keys. Null: the weights take a second pass.
  Sum* exponentials{};                // [Tk up to whole chunks][strip]
  Sum* chunk_shifts{};                // [chunks][strip]: the shift that each chunk's exponentials were computed with
  Ahead* ahead{};                     // null: nothing is fetched
  const CarriedRows<Sum>* carried{};  // null: all keys in this call. Without weights, exponentials and ahead
};

/// Backward of queries [q_begin, +q_count) x keys [k_begin, +k_count) of one (batch, head): rows are those of these
/// queries and, of gradients, of these keys. Null gradients are not computed.
template <class Sum> struct BackwardTile {
  ScoreParams<Sum> scores;
  Rows q{}, dout{};  // [q_count, D], [q_count, Dv]
  HeadKeys keys;
  const Sum *lse2_high{}, *lse2_low{};  // [q_count]: lse * log2(e) as an unevaluated sum; high is +inf for an empty row
  const Sum* delta{};                   // [q_count]: rowsum(dout * out) - dlse
  Index v_head_dim, q_begin{}, q_count{}, k_begin{}, k_count{};
  Sum *dq{}, *dk{}, *dv{};  // [q_count, D], [k_count, D], [k_count, Dv]
  Index dq_stride{}, dk_stride{}, dv_stride{};
  bool sets_dq{}, sets_keys{};  // nothing was added to these rows of dq (of dk and dv) yet: they are set, not added to
  Sum* dbias{};                 // [Tq, Tk]: added to or set; an axis with stride 0 is summed over
  Index dbias_row_stride{}, dbias_column_stride{};
  bool sets_dbias = false;  // it is set: every element is met once, and nothing was added to it
  Sum* dposition{};         // the same gradient summed by key - query: added to; null: not wanted
  Ahead* ahead{};           // null: nothing is fetched
};

/// delta[i] = sum_d dout[i, d] * out[i, d], summed over d in the order of backward's dout . v: a row with one live key
/// then has dP - delta = 0 exactly.
template <class Sum> struct DeltaRows {
  Rows dout, out;  // [count, Dv]
  Index v_head_dim, count;
  Sum* delta;  // [count]
};

/// Few queries of one batch element and all heads that share one key/value head. Row r is query r % q_len of the
/// group's head r / q_len; there are at most kDecodeRowLimit.
template <class Sum> struct DecodeGroup {
  ScoreParams<Sum>
      scores;  // of the group's first head; mask, dropout, callback and sink of the others count up from it
  HeadKeys keys;
  Rows q, out;  // [q_len, D], [q_len, Dv] of the group's first head
  Index q_head_stride, out_head_stride;
  Index q_len, group_size, v_head_dim;
  Sum* lse;  // [group_size * q_len]: natural log; always written
  Index bias_head_stride, position_head_stride;
  bool mask_differs;  // between the heads of the group
};

constexpr Index kDecodeRowLimit = 16;

/// Attention of a DecodeGroup by parts of the keys (split-K): computed in any order, merged in the order of the keys.
template <class Sum> struct DecodeKernels {
  Index (*chunk)(StoredType keys, Index head_dim, Index v_head_dim);  // keys per step of the online softmax
  /// Keys of a part, a whole number of chunks and, as key_tile, a constant of (instruction set, types, D, Dv).
  Index (*part_keys)(StoredType keys, Index head_dim, Index v_head_dim);
  std::size_t (*scratch_bytes)(StoredType keys, Index rows, Index head_dim, Index v_head_dim);
  std::size_t (*state_bytes)(Index rows, Index v_head_dim);
  void (*part)(const DecodeGroup<Sum>&, Index k_begin, Index k_end, void* scratch, void* state);
  void (*merge)(const DecodeGroup<Sum>&, void* into, const void* from);
  void (*finish)(const DecodeGroup<Sum>&, void* state);
};

/// Kernels whose sums are of type Sum; rows may be stored as any type that is summed so. Those named pairs multiply
/// pairs of bf16: all rows are bf16 and no weights are written. Null: there are none.
template <class Sum> struct Kernels {
  Index strip;  // queries side by side in SIMD lanes
  /// Keys of a chunk: a constant of (instruction set, type, D, Dv), never of batch, threads or cache sizes, so that
  /// results are bit-identical.
  Index (*key_tile)(Index head_dim, Index v_head_dim);
  /// Queries of a work item: a whole number of strips, chosen so that scratch stays small.
  Index (*query_tile)(StoredType rows, Index head_dim, Index v_head_dim);
  /// The same where sums are added tile by tile and bits are invariant: one number for every instruction set.
  Index (*sum_queries)(StoredType rows, Index head_dim, Index v_head_dim);
  /// query_tile of forward on keys that are copied; `everywhere`: one that is the same on every instruction set.
  Index (*copied_query_tile)(Index head_dim, Index v_head_dim, bool everywhere);
  /// Keys of a backward work item: a whole number of chunks.
  Index (*backward_keys)(Index head_dim, Index v_head_dim);
  /// Of a tile of `queries`. copies: not all rows of q, k, v and out are of type Sum, and keys one page.
  std::size_t (*forward_scratch_bytes)(Index head_dim, Index v_head_dim, Index queries, bool copies);
  std::size_t (*backward_scratch_bytes)(Index head_dim, Index v_head_dim, bool copies);  // of backward and of delta
  void (*forward)(const ForwardTile<Sum>&, void* scratch);
  void (*backward)(const BackwardTile<Sum>&, void* scratch);
  void (*delta)(const DeltaRows<Sum>&, void* scratch);
  void (*forward_pairs)(const ForwardTile<Sum>&, void* scratch);
  void (*backward_pairs)(const BackwardTile<Sum>&, void* scratch);
  void (*delta_pairs)(const DeltaRows<Sum>&, void* scratch);
  /// to[r][c] (+)= sums[r][c], rounded once, for rows x columns; rows of sums follow each other. 16-bit rows only.
  void (*round)(const Sum* sums, Index rows, Index columns, const Rows& to, bool add);
};

}  // namespace qkv
