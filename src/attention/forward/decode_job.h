// Decode of a part of a batch, as its work items see it, and what one item does: a part of the keys of one kv head. Its result
// is merged in turn into one state that all items share: memory does not grow with the keys, and the order of merging depends
// on neither threads nor timing. Not: which items there are and in which order (forward_driver.cc).
#pragma once

#include <algorithm>
#include <cstring>

#include "core/threads/turns.h"
#include "attention/call/empty_rows.h"
#include "attention/plan/decode.h"

namespace qkv::inline v0 {

template <class T>
struct DecodeJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<T, 4> out;
  View<Sum, 3> lse;  // null: not wanted
  DecodeShape shape;
  std::byte* shared;  // the state of the head whose parts are being merged
  Turn& turn;

  DecodeGroup<T> group(Index b, Index g, Sum* row_lse) const {
    const Index h = g * p.group_size();
    DecodeGroup<T> t{};
    t.scores = p.scores(b, h);
    t.v = p.v.data() + b * p.v.stride(0) + g * p.v.stride(1);
    t.out = out.data() + b * out.stride(0) + h * out.stride(1);
    t.lse = row_lse;
    t.q_head_stride = p.q.stride(1);
    t.bias_head_stride = p.bias.is_null() ? p.position.head_stride : repeat_stride(p.bias, 1);
    t.position_head_stride = p.position.head_stride;
    t.v_stride = p.v.stride(2);
    t.v_head_dim = p.v_head_dim;
    t.out_head_stride = out.stride(1);
    t.out_stride = out.stride(2);
    t.q_len = p.q_len;
    t.group_size = p.group_size();
    t.mask_differs = shape.mask_differs;
    return t;
  }

  void finish(const DecodeGroup<T>& t, Index b, Index g, std::byte* state) const {
    p.kernels->decode.finish(t, state);
    for (Index n = 0; n < p.group_size(); ++n) {
      const Index h = g * p.group_size() + n;
      const Sum* row_lse = t.lse + n * p.q_len;
      if (p.rows_can_be_empty()) fill_empty_out(p, b, h, 0, p.q_len, row_lse, t.out + n * t.out_head_stride, t.out_stride);
      if (lse.data() == nullptr) continue;
      for (Index i = 0; i < p.q_len; ++i) lse(b, h, i) = row_lse[i];
    }
  }

  /// Runs part `part` of the keys of kv head g of sequence b. `item` is its number among the items that share the turn;
  /// `scratch` has shape.worker_bytes().
  void run(Index item, Index b, Index g, Index part, std::byte* scratch) const {
    Sum row_lse[kDecodeRowLimit];
    const DecodeGroup<T> t = group(b, g, row_lse);
    Index begin = 0, end = p.length(b);
    const TileMask& mask = t.scores.mask;
    if (mask.key_range != nullptr) mask.key_range(mask.mask, b, mask.head, 0, p.q_len, &begin, &end);
    const Index last = begin < end ? (end - 1) / shape.part_keys : 0, first = begin < end ? begin / shape.part_keys : 0;
    std::byte* state = scratch + shape.scratch_bytes;
    const DecodeKernels<T>& kernels = p.kernels->decode;
    const bool live = first <= part && part <= last;
    const Index k_begin = part * shape.part_keys;
    const Index k_end = std::min(k_begin + shape.part_keys, p.length(b));
    if (live && p.cache != nullptr) {
      p.cache_kernels->decode_part(t, cached_head(*p.cache, b, g), k_begin, k_end, scratch, state);
    } else if (live) {
      kernels.part(t, k_begin, k_end, scratch, state);
    }
    if (shape.parts == 1) {
      finish(t, b, g, state);
      return;
    }
    wait_for_turn(turn, item);
    if (live && part == first) {
      std::memcpy(shared, state, shape.state_bytes);
    } else if (live) {
      kernels.merge(t, shared, state);
    }
    if (live && part == last) finish(t, b, g, shared);
    pass_turn(turn, item);
  }
};

}  // namespace qkv::inline v0
