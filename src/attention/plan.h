// What plans of the forms of a call have in common: how tiles are counted and flops follow from them, and what is said of every
// call. Not: each form's memory and work items (plan.cc, varlen_forward.cc, varlen_backward.cc).
#pragma once

#include "attention/problem.h"
#include "attention/varlen.h"

namespace qkv {
inline namespace v0 {

/// Says where it would run, and why not elsewhere.
void add_machine(const Context& context, AttentionPlan& plan);

/// Adds the tiles of all heads of sequence b, query strips x chunks of `key_tile` keys, and the flops of their kept pairs.
/// Throws what a callback throws.
template <class T>
void add_tiles(const Problem<T>& p, Index b, Index key_tile, AttentionPlan& plan);

/// Algorithm, tiles, work items, scratch of a ragged batch.
template <class T>
void plan_ragged_forward(const RaggedProblem<T>& r, AttentionPlan& plan);
/// Scratch of its backward.
template <class T>
void plan_ragged_backward(const RaggedProblem<T>& r, const Context& context, AttentionPlan& plan);

}  // namespace v0
}  // namespace qkv
