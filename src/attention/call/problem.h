// One checked call of attention: sizes, options and strides turned into what is passed to kernels, head by head. The
// type of elements is a value; Sum, the type in which they are added up, is a type only where kernels are called.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attention/call/tensor_checks.h"
#include "attention/keys/key_source.h"
#include "attention/mask/summary.h"
#include "attention/scores/position_bias.h"
#include "dispatch/kernels.h"
#include "qkv/attention.h"

namespace qkv::inline v0 {

/// Prepared from a call's options before it starts.
struct CallMemory {
  ScratchLease position;  // the position bias, spread out
  DenseSummaries dense;   // of the mask
  std::optional<ShownKeys> shown;
};

using Outputs = detail::AnyOutputs;
using Gradients = detail::AnyGradients;

/// Rows of head h of sequence b of [B, H, T, width], from row `first` on; null: null.
inline Rows rows_at(const AnyView& x, Index b, Index h, Index first) {
  return {x.at(b, h, first), x.type, x.stride(2)};
}

/// Has rows [first, first + count) of a head fetched; nothing of a null view.
inline void add_rows_of(Ahead& ahead, const AnyView& x, Index b, Index h, Index first, Index count) {
  const Index bytes = x.element_bytes();
  if (x.data != nullptr && count > 0)
    add_bytes(ahead, x.at(b, h, first), x.stride(2) * bytes, x.size(3) * bytes, count);
}

/// 0 for an axis of size 1, which repeats.
inline Index repeat_stride(const AnyView& x, int axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); }

/// Packed tokens [total, H, D] as [1, H, total, D], and their numbers [total, H] as [1, H, total].
inline AnyView as_one_sequence(AnyView x) {
  if (x.rank == 3) {
    x.sizes = {1, x.size(1), x.size(0), x.size(2)};
    x.strides = {0, x.stride(1), x.stride(0), x.stride(2)};
  } else {
    x.sizes = {1, x.size(1), x.size(0)};
    x.strides = {0, x.stride(1), x.stride(0)};
  }
  ++x.rank;
  return x;
}

struct Problem {
  Index batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, v_head_dim;
  AnyView q;
  KeySource keys;
  AnyView bias;           // [B|1, H|1, Tq|1, Tk|1] of sums; null: none
  AnyView sinks;          // [H] of sums; null: none
  BoundMask mask;         // refers to options.mask
  double scale, softcap;  // as rounded to the type of sums
  Dropout dropout;
  std::uint32_t dropout_threshold;
  EmptyRow empty_row;
  const KernelTables* tables;
  Index strip, key_tile, query_tile, sum_queries, backward_keys;
  const PositionBias* position_bias;  // of the options
  PositionVectors position;
  const ScoreMod* score_mod;  // of the options; null: none

  bool invariant;  // Bits::kInvariant
  // detail::Part: q holds rows [first_query, +q_len) of `queries` and heads [first_head, +num_heads) of `heads`. Heads
  // h are counted here, queries that kernels and masks see are counted in the whole problem.
  Index first_query, queries, first_head, heads;
  GroupMask group_mask;  // where the queries are those of all heads of a group (plan/choose.h)
  PartMask part_mask;    // of backward, where rows are added to the call's own

  template <class Sum> const Kernels<Sum>& kernels() const { return for_element<Sum>(tables->attention); }
  template <class Sum> const DecodeKernels<Sum>& decode() const { return for_element<Sum>(tables->cache); }
  /// Whether elements are rounded sums: gradients are then summed in memory of their own.
  bool rounds() const { return q.type != StoredType::kF32 && q.type != StoredType::kF64; }
  Index sum_bytes() const { return q.type == StoredType::kF64 ? 8 : 4; }
  Index length(Index b) const { return keys.length(b); }  // keys of sequence b
  /// Whether rows are copied before they are multiplied.
  bool copies() const { return rounds() || keys.is_cache(); }
  std::size_t backward_scratch_bytes() const;
  std::size_t forward_scratch_bytes(Index queries_of_tile, bool copied) const;
  std::size_t forward_scratch_bytes() const { return forward_scratch_bytes(query_tile, copies()); }
  /// For what is summed tile by tile: with invariant bits the same tiles on every instruction set.
  void use_sum_tiles() {
    if (invariant) query_tile = sum_queries;
  }
  Index group_size() const { return num_kv_heads == 0 ? 1 : num_heads / num_kv_heads; }
  Index key_ranges() const { return (kv_len + backward_keys - 1) / backward_keys; }  // of backward
  /// Whether the call is a part of a larger problem.
  bool is_part() const { return q_len != queries || num_heads != heads; }
  Index query_tiles() const { return (q_len + query_tile - 1) / query_tile; }
  /// The rows of tile t, counted in the whole problem.
  Positions tile(Index t) const {
    const Index begin = t * query_tile;
    return {first_query + begin, first_query + std::min(begin + query_tile, q_len)};
  }
  double pairs() const {
    return static_cast<double>(batch * num_heads) * static_cast<double>(q_len) * static_cast<double>(kv_len);
  }
  bool rows_can_be_empty() const {
    return mask.node != nullptr || !bias.is_null() || position.zero != nullptr || score_mod != nullptr ||
           keys.is_cache();
  }
  std::uint32_t sequence_head(Index b, Index h) const {
    const auto whole = [](Index n) { return static_cast<std::uint64_t>(n); };  // modulo 2^64; only the low half counts
    return static_cast<std::uint32_t>(
        (whole(b) + whole(dropout.first_sequence)) * whole(heads) + whole(first_head + h));
  }
  /// The mask of head h of sequence b; null functions: everything is kept.
  TileMask tile_mask(Index b, Index h) const {
    if (mask.keeps_all()) return {};
    if (group_mask.mask != nullptr) return tile_mask_of(group_mask, b, h * (mask.extent.num_heads / num_heads));
    return {mask_tile, mask_key_range, &mask, b, first_head + h, mask_next_key};
  }
  template <class Sum> ScoreParams<Sum> scores(Index b, Index h) const;
  /// Some queries, counted in the whole problem, of head h of sequence b; the caller sets what is written.
  template <class Sum> ForwardTile<Sum> forward_tile(Index b, Index h, const Positions& some) const {
    return {.scores = scores<Sum>(b, h),
        .q = rows_at(q, b, h, some.begin - first_query),
        .keys = keys.head(b, h / group_size()),
        .v_head_dim = v_head_dim,
        .q_begin = some.begin,
        .q_count = some.end - some.begin};
  }
  /// The table that the position bias reads; null: none, or slopes, which are copied.
  AnyView position_table() const;
  /// Reads what the options borrow, the table of the position bias and dense masks, into `memory`.
  void prepare(Context& context, CallMemory& memory);
};

/// Checks q, k, v and the options but for the mask and what has the sizes of single sequences. reads_v false: v may be
/// null; dense: it may be a part of a larger problem. Throws ShapeError, OptionError, UnsupportedError.
Problem make_problem(const char* function, const AnyView& q, const KeySource& keys, const AttentionOptions& options,
    const Context& context, bool reads_v = true, bool dense = false);
/// The whole of a dense call. `memory` must live as long as the problem and stay where it is.
Problem make_dense_problem(const char* function, const AnyView& q, const KeySource& keys,
    const AttentionOptions& options, Context& context, CallMemory& memory, bool reads_v = true);
/// The same of a call on a cache, to which the problem refers. Throws UnsupportedError too.
Problem make_cached_problem(const char* function, const AnyView& q, const KeyValue& kv, const AttentionOptions& options,
    Context& context, CallMemory& memory);

/// Throws ShapeError unless each axis has the wanted size or 1; `sizes` names the sizes in letters. A null bias passes.
void check_bias_sizes(const char* function, const char* sizes, const AnyView& bias, const std::array<Index, 4>& wanted);
/// Throws ShapeError or OptionError if the position bias does not fit a sequence of these sizes.
void check_position_bias(const char* function, const Problem& p, Index q_len, Index kv_len);

}  // namespace qkv::inline v0
