// A call whose keys arrive in chunks, by ascending keys, each as tensors of its own: for callers that never hold all of
// them.
#pragma once

#include <numeric>

#include "attention/plan/part_rows.h"

namespace qkv::inline v0 {

/// Of all keys and values.
struct KeySizes {
  Index heads, length, v_head_dim;
};

/// Keys [begin, end) of all: k [B, Hkv, some, D], v [B, Hkv, some, Dv].
struct KeyChunk {
  AnyView k, v;  // v null: only rows' maxima and sums are computed
  Index begin;

  Index end() const { return begin + k.size(2); }
};

/// A chunk begins, and all but the last end, at a multiple of this many keys: a constant of (instruction set, type, D,
/// Dv).
inline Index carried_step(
    StoredType elements, Index head_dim, Index v_head_dim, const AttentionOptions& options, const Context& context) {
  const KernelTables& tables = kernel_tables(context.isa(), is_invariant(context, options.bits));
  return with_sums(elements, [&](auto sum) {
    const Kernels<decltype(sum)>& kernels = for_element<decltype(sum)>(tables.attention);
    return std::lcm(kernels.key_tile(head_dim, v_head_dim), kernels.backward_keys(head_dim, v_head_dim));
  });
}

/// [B, heads, length, width] of q's type, of which no row is here.
inline AnyView sizes_of_keys(const AnyView& q, const KeySizes& keys, Index width) {
  AnyView sizes = q;
  sizes.data = nullptr;
  sizes.sizes = {q.size(0), keys.heads, keys.length, width};
  sizes.strides = {0, 0, 0, 1};
  return sizes;
}

/// The problem of such a call: sizes are those of all keys, rows those of the last chunk that was read.
struct CarriedProblem {
  AttentionOptions options;  // the problem refers to it
  CallMemory memory;
  Problem p;

  CarriedProblem(const char* function, const AnyView& q, const KeySizes& keys, const AttentionOptions& given_options,
      Context& context)
      : options(given_options),
        p(make_dense_problem(function, q, {sizes_of_keys(q, keys, q.size(3)), sizes_of_keys(q, keys, keys.v_head_dim)},
            options, context, memory)) {
    p.keys.read({}, {}, 0);
  }
  CarriedProblem(const CarriedProblem&) = delete;
  CarriedProblem& operator=(const CarriedProblem&) = delete;
};

/// Whether tiles compute all queries of such a call, of which q has some: decode takes all keys of few queries at once,
/// and lists of keys are read alone.
inline bool is_tiled(const AnyView& q, const KeySizes& keys, Index queries, const AttentionOptions& options,
    Context& context, bool backward) {
  AttentionOptions whole = options;
  whole.part = {0, queries, 0, q.size(1)};
  const char* function = backward ? "attention_backward" : "attention_forward";
  Problem p = make_problem(function, q, {sizes_of_keys(q, keys, q.size(3)), sizes_of_keys(q, keys, keys.v_head_dim)},
      whole, context, true, true);
  p.mask = {options.mask.node(), {p.batch, p.heads, p.queries, p.kv_len}};
  check_mask(options.mask, p.mask.extent, function);
  const Listed lists(p);
  return backward ? !lists.applies_backward() : choose(p, lists) == How::kTiles;
}

}  // namespace qkv::inline v0
