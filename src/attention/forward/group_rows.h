// Few queries, with bits that no other row changes (Bits::kInvariant): the queries of all heads that share K and V become those
// of one head, so that the tiled kernel reads K and V once. Not: few queries otherwise (decode.h).
#pragma once

#include "attention/capture/capture.h"
#include "attention/forward/forward_driver.h"
#include "attention/forward/listed_forward.h"

namespace qkv::inline v0 {

/// Rows of a group that are worth it: lanes of a strip on the widest vectors.
inline constexpr Index kGroupRows = 32;

/// Whether rows [head][query] of [B, H, Tq, ..] lie at one stride. Those of a null view do.
template <class T, int kRank>
bool rows_follow(const View<T, kRank>& x) {
  return x.size(2) == 1 || x.stride(1) == x.size(2) * x.stride(2);
}

/// Whether a group's heads differ in nothing but their rows, and only rows are wanted.
template <class T>
bool groups_rows(const Problem<T>& p, const AttentionOutputs<T>& outputs) {
  const bool same = p.sinks.is_null() && p.position.zero == nullptr && p.score_mod == nullptr && p.dropout_threshold == 0 &&
                    !mask_differs_by_head(p.mask) && outputs.weights.data() == nullptr;
  const bool bias_follows = p.bias.is_null() || repeat_stride(p.bias, 1) == p.q_len * repeat_stride(p.bias, 2) || p.q_len == 1;
  return p.invariant && !p.placed() && p.group_size() > 1 && p.q_len > 0 && p.q_len * p.group_size() <= kGroupRows && same &&
         bias_follows && rows_follow(p.q) && rows_follow(outputs.out) && rows_follow(outputs.lse);
}

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

/// A group's heads as one: heads of the result are groups of p, which must outlive it.
template <class T>
Problem<T> group_rows(const Problem<T>& p) {
  const Index group = p.group_size();
  Problem<T> grouped = p;
  grouped.q = group_rows(p.q, group);
  grouped.num_heads = grouped.heads = p.num_kv_heads;
  grouped.q_len = grouped.queries = group * p.q_len;
  grouped.group_mask = {&p.mask, p.q_len};
  if (!p.bias.is_null()) {  // an axis of size 1 repeats
    const View<const Accumulator<T>, 4>& bias = p.bias;
    const Index by_head = repeat_stride(bias, 1), by_row = p.q_len == 1 ? by_head : repeat_stride(bias, 2);
    grouped.bias = {bias.data(),
                    {p.batch, p.num_kv_heads, grouped.q_len, p.kv_len},
                    {repeat_stride(bias, 0), group * by_head, by_row, repeat_stride(bias, 3)}};
  }
  return grouped;
}

/// forward_batch of a problem that is not ragged.
template <class T>
void forward_dense(const Problem<T>& p, const AttentionOutputs<T>& outputs, CaptureJob<T>* capture, Context& context) {
  if (const Listed<T> listed(p); outputs.out.data() != nullptr && listed.applies()) {
    forward_listed(p, listed, outputs.out, outputs.lse, context);
    if (outputs.weights.data() == nullptr && capture == nullptr) return;
    const AttentionOutputs<T> weights{.weights = outputs.weights, .kind = outputs.kind};
    return forward_batch<T>(Batch<T>(p), weights, capture, context);
  }
  if (capture != nullptr || !groups_rows(p, outputs)) return forward_batch<T>(Batch<T>(p), outputs, capture, context);
  const Problem<T> grouped = group_rows(p);
  const Index group = p.group_size();
  const AttentionOutputs<T> rows{.out = group_rows(outputs.out, group), .lse = group_rows(outputs.lse, group)};
  forward_batch<T>(Batch<T>(grouped), rows, nullptr, context);
}

}  // namespace qkv::inline v0
