// A key/value cache that is cut over ranks: every rank attends to its own keys with the same queries, and the results
// are merged. Not: queries that are cut (context_parallel.h).
#pragma once

#include "qkv/attention.h"
#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// Collective. out [B, H, Tq, Dv] and lse [B, H, Tq] hold this rank's part, attention over its own keys (on views or a
/// cache, with EmptyRow::kZero and without sinks), and become those of all keys, the same bits on every rank:
/// merge_attention of the parts in order of ranks. A rank without keys passes zeros and lse = -inf. Within rounding of
/// one machine, not its bits: a sum of sums is another sum. A rank sends its part to every other one: P - 1 times B H
/// Tq (Dv + 1) numbers. Throws MismatchError where sizes or types differ between ranks, TransportError, ShapeError.
QKV_API void merge_over_ranks(
    Transport& transport, View<float, 4> out, View<float, 3> lse, Context& context = Context::default_context());
QKV_API void merge_over_ranks(
    Transport& transport, View<double, 4> out, View<double, 3> lse, Context& context = Context::default_context());
QKV_API void merge_over_ranks(
    Transport& transport, View<BFloat16, 4> out, View<float, 3> lse, Context& context = Context::default_context());
QKV_API void merge_over_ranks(
    Transport& transport, View<Float16, 4> out, View<float, 3> lse, Context& context = Context::default_context());

}  // namespace qkv::inline v0::dist
