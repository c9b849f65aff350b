// A call whose keys arrive in chunks, by ascending keys, each as tensors of its own: for callers that never hold all of them.
#pragma once

#include <numeric>
#include <optional>
#include <vector>

#include "attention/plan/placed_rows.h"
#include "core/overlap.h"

namespace qkv::inline v0 {

/// Of all keys and values.
struct KeySizes {
  Index heads, length, v_head_dim;
};

/// Keys [begin, begin + k.size(2)) of all: k [B, Hkv, some, D], v [B, Hkv, some, Dv].
template <class T>
struct KeyChunk {
  View<const T, 4> k, v;  // v null: only rows' maxima and sums are computed
  Index begin;

  Index end() const { return begin + k.size(2); }
};

/// A chunk begins, and all but the last end, at a multiple of this many keys: a constant of (instruction set, type, D, Dv).
template <class T>
Index carried_step(Index head_dim, Index v_head_dim, const AttentionOptions& options, const Context& context) {
  const bool invariant = options.bits == Bits::kInvariant || context.bits() == Bits::kInvariant;
  const Kernels<Accumulator<T>>& kernels = kernels_of<T>(invariant ? without_bf16_products(context.isa()) : context.isa());
  return std::lcm(kernels.key_tile(head_dim, v_head_dim), kernels.backward_keys(head_dim, v_head_dim));
}

/// The problem of such a call: sizes are those of all keys, and k and v point to where row 0 would lie, given a chunk. Before, v is
/// any address: rows that need no chunk are empty rows, which are written where v is wanted.
template <class T>
struct CarriedProblem {
  AttentionOptions options;  // the problem refers to it
  CallMemory memory;
  Problem<T> p;

  CarriedProblem(const char* function, const View<const T, 4>& q, const KeySizes& keys, const AttentionOptions& its_options,
                 Context& context)
      : options(its_options),
        p(make_problem(function, q, View<const T, 4>(nullptr, {q.size(0), keys.heads, keys.length, q.size(3)}),
                       View<const T, 4>(q.data(), {q.size(0), keys.heads, keys.length, keys.v_head_dim}), options, context,
                       Use::kOutput, &memory)) {}
  CarriedProblem(const CarriedProblem&) = delete;
  CarriedProblem& operator=(const CarriedProblem&) = delete;

  /// Rows of `some`, which begin at `begin`, as rows of all `length`.
  template <class E>
  static View<E, 4> of_all(const View<E, 4>& some, Index begin, Index length) {
    if (some.is_null()) return {};
    auto sizes = some.sizes();
    sizes[2] = length;
    return {some.data() - begin * some.stride(2), sizes, some.strides()};
  }
  void read(const KeyChunk<T>& chunk) {
    p.k = of_all(chunk.k, chunk.begin, p.kv_len);
    p.v = of_all(chunk.v, chunk.begin, p.kv_len);
  }
};

/// Whether tiles compute all queries of such a call, of which q has some: decode takes all keys of few queries at once, and lists of
/// keys are read alone.
template <class T>
bool is_tiled(const View<const T, 4>& q, const KeySizes& keys, Index queries, const AttentionOptions& options, Context& context,
              bool backward) {
  const AttentionOptions whole = placed(options, {0, queries, 0, q.size(1)});
  const auto sizes = [&](Index width) { return View<const T, 4>(nullptr, {q.size(0), keys.heads, keys.length, width}); };
  const char* function = backward ? "attention_backward" : "attention_forward";
  const Problem<T> p = make_problem(function, q, sizes(q.size(3)), sizes(keys.v_head_dim), whole, context);
  const Listed<T> lists(p);
  return backward ? !lists.applies_backward() : choose(p, lists) == How::kTiles;
}

/// What such a call reads beside its keys: outputs must not lie there.
template <class T>
std::vector<NamedBox> boxes_beside(const View<const T, 4>& q, const Problem<T>& p) {
  return {{"q", q}, {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
}

}  // namespace qkv::inline v0
