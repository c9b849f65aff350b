// One checked call of attention: sizes, options and strides turned into what is passed to kernels, head by head.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "attention/cache/cached.h"
#include "attention/call/tensor_checks.h"
#include "attention/mask/node.h"
#include "attention/mask/summary.h"
#include "attention/scores/position_bias.h"
#include "dispatch/kernels.h"
#include "kernels/params.h"
#include "qkv/attention.h"

/// define(T) for every element type of attention.
#define QKV_FOR_EACH_ELEMENT(define) define(float) define(double) define(BFloat16) define(Float16)

namespace qkv::inline v0 {

/// Tensors of this size together stay in L3: to fetch the next head's rows (kernels/ahead.h) would cost more than it gives.
inline constexpr Index kFetchedBytes = Index{6} << 20;

/// What a call prepares from its options before it starts.
struct CallMemory {
  ScratchLease position;  // the position bias, spread out
  DenseSummaries dense;   // of the mask
  std::optional<ShownKeys> shown;
};

/// Rows of head h of sequence b of [B, H, T, width], from row `first` on; null: null.
template <class E>
Rows rows_at(const View<E, 4>& view, Index b, Index h, Index first) {
  using Element = std::remove_const_t<E>;
  if (view.data() == nullptr) return {nullptr, stored_as<Element>(), 0};
  E* const row = view.data() + b * view.stride(0) + h * view.stride(1) + first * view.stride(2);
  return {reinterpret_cast<std::byte*>(const_cast<Element*>(row)), stored_as<Element>(), view.stride(2)};
}

template <class T>
struct Problem {
  using Sum = Accumulator<T>;
  Index batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, v_head_dim;
  View<const T, 4> q, k, v;  // v is null if only weights are requested
  View<const Sum, 4> bias;   // null: none
  BoundMask mask;            // refers to options.mask
  Sum scale, softcap;
  Dropout dropout;
  std::uint32_t dropout_threshold;
  EmptyRow empty_row;
  const Kernels<Sum>* kernels;
  const DecodeKernels<Sum>* decode;
  Index key_tile, query_tile, backward_keys;
  View<const Sum, 1> sinks;           // [H]; null: none
  const PositionBias* position_bias;  // of the options
  PositionVectors<Sum> position;      // the same as kernels read it
  const ScoreMod* score_mod;          // of the options; null: none

  bool invariant;  // Bits::kInvariant
  // Placement: the views above are rows [first_query, +q_len) of `queries` and heads [first_head, +num_heads) of `heads`. Heads h
  // are counted here, queries that kernels and masks see are counted in the whole problem.
  Index first_query, queries, first_head, heads;
  GroupMask group_mask;  // where the queries are those of all heads of a group (forward/group_rows.h)

  const KeyValue* cache;                 // where k and v are read from; null: the views

  /// The tables of kernels that forward takes.
  Isa isa(const Context& context) const { return invariant ? without_bf16_products(context.isa()) : context.isa(); }
  Index length(Index b) const { return cache == nullptr ? kv_len : cache->length(b); }  // keys of sequence b
  /// Whether rows are copied before they are multiplied.
  bool copies() const { return !std::is_same_v<T, Sum> || cache != nullptr; }
  std::size_t backward_scratch_bytes() const { return kernels->backward_scratch_bytes(head_dim, v_head_dim, copies()); }
  std::size_t forward_scratch_bytes() const {
    return kernels->forward_scratch_bytes(head_dim, v_head_dim, query_tile, copies());
  }
  Index group_size() const { return num_kv_heads == 0 ? 1 : num_heads / num_kv_heads; }
  Index key_ranges() const { return (kv_len + backward_keys - 1) / backward_keys; }  // of backward
  /// Whether the call is a part of a larger problem.
  bool placed() const { return q_len != queries || num_heads != heads; }
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
    return mask.node != nullptr || !bias.is_null() || position.zero != nullptr || score_mod != nullptr || cache != nullptr;
  }
  std::uint32_t sequence_head(Index b, Index h) const {
    const auto whole = [](Index n) { return static_cast<std::uint64_t>(n); };  // modulo 2^64; only the low half counts
    return static_cast<std::uint32_t>((whole(b) + whole(dropout.first_sequence)) * whole(heads) + whole(first_head + h));
  }
  /// The mask of head h of sequence b; null functions: everything is kept.
  TileMask tile_mask(Index b, Index h) const {
    if (mask.keeps_all()) return {};
    if (group_mask.mask != nullptr) return tile_mask_of(group_mask, b, h * (mask.extent.num_heads / num_heads));
    return {mask_tile, mask_key_range, &mask, b, first_head + h, mask_next_key};
  }
  ScoreParams<Sum> scores(Index b, Index h) const;
  StoredType stored() const { return cache == nullptr ? stored_as<T>() : stored_type(cache->storage()); }  // of k and v
  /// K and V of key/value head g of sequence b.
  HeadKeys keys(Index b, Index g) const;
  /// Reads what the options borrow, the table of the position bias and dense masks, into `memory`.
  void prepare(Context& context, CallMemory& memory);
};

enum class Use {
  kOutput,
  kWeights,           // v is not read and may be null
  kMaskLater,         // the mask and sizes of biases differ per sequence and are not checked here
  kWeightsMaskLater,  // both
};

/// Checks q, k, v and the options. Throws ShapeError, OptionError. `memory` must live as long as the problem and stay where it
/// is; null: no summaries and no position bias, which the caller makes.
template <class T>
Problem<T> make_problem(const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
                        const AttentionOptions& options, Context& context, Use use = Use::kOutput,
                        CallMemory* memory = nullptr);

/// The same of a call on a cache, to which the problem refers. Throws UnsupportedError too.
template <class T>
Problem<T> make_cached_problem(const char* function, const View<const T, 4>& q, const KeyValue& kv,
                               const AttentionOptions& options, Context& context, CallMemory& memory);

/// The table that the position bias reads; null: none, or slopes, which are copied.
template <class T>
View<const Accumulator<T>, 2> position_table(const Problem<T>& p) {
  if constexpr (std::is_same_v<Accumulator<T>, float>) {
    return p.position_bias->f32();
  } else {
    return p.position_bias->f64();
  }
}

/// Throws ShapeError unless each axis has the wanted size or 1; `sizes` names the sizes in letters. A null bias passes.
template <class T>
void check_bias_sizes(const char* function, const char* sizes, const View<const T, 4>& bias,
                      const std::array<Index, 4>& wanted);

/// 0 for an axis of size 1, which repeats.
template <class T, int Rank>
Index repeat_stride(const View<T, Rank>& view, int axis) {
  return view.size(axis) == 1 ? 0 : view.stride(axis);
}

}  // namespace qkv::inline v0
