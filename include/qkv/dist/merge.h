// A key/value cache that is cut over ranks: every rank attends to its own keys with the same queries, and the
// results are merged.
#pragma once

#include "qkv/attention.h"
#include "qkv/dist/transport.h"

namespace qkv::inline v0 {
namespace detail {
template <class T> QKV_API void merge_over_ranks(
    dist::Transport& transport, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, Context& context);
}  // namespace detail

namespace dist {

/// Collective. out [B, H, Tq, Dv] and lse [B, H, Tq] hold this rank's part, attention over its own keys (on views or a
/// cache, with EmptyRow::kZero and without sinks), and become those of all keys, the same bits on every rank:
/// merge_attention of the parts in order of ranks. A rank without keys passes zeros and lse = -inf. Within rounding of
/// one machine, not its bits: a sum of sums is another sum. A rank sends its part to every other one: P - 1 times B H
/// Tq (Dv + 1) numbers. Throws MismatchError where sizes or types differ between ranks, TransportError, ShapeError.
template <Operand To> void merge_over_ranks(
    Transport& transport, To&& out, SumsOut<To, 3> lse, Context& context = Context::default_context()) {
  qkv::detail::merge_over_ranks<ElementOf<To>>(transport, Out<To, 4>(out), lse, context);
}

}  // namespace dist
}  // namespace qkv::inline v0
