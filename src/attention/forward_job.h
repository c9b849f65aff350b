// One call of tiled forward, as its work items see it, and what one item does. Not: which items there are and in which order
// (forward.cc, varlen_forward.cc).
#pragma once

#include <algorithm>

#include "attention/capture.h"
#include "attention/empty_rows.h"
#include "attention/problem.h"

namespace qkv {
inline namespace v0 {

inline constexpr std::size_t kKeptLimitBytes = std::size_t{3} << 19;  // of a thread's 2 MiB; Tk = 8,192 in f32 fits

/// One call, as every work item sees it.
template <class T>
struct ForwardJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<T, 4> out;        // null: only weights
  View<Sum, 3> lse;      // null: not wanted
  View<Sum, 4> weights;  // null: not wanted
  bool weights_applied;
  std::byte* scratch = nullptr;
  std::size_t kernel_bytes = 0, scratch_bytes = 0;  // a worker: the kernel's, and with the exponentials kept for weights
  CaptureJob<T>* capture = nullptr;                 // null: nobody looks
  std::size_t capture_bytes = 0;                    // a worker, after scratch_bytes

  Index chunks() const { return (p.kv_len + p.key_tile - 1) / p.key_tile; }

  /// Bytes of a worker that save a second sweep over the keys; 0 where there is none to save or they would not stay in L2.
  std::size_t kept_bytes() const {
    // Under dropout what multiplies v is not what is wanted, or not in the bits of softmax times factor.
    if (out.data() == nullptr || weights.data() == nullptr || p.dropout_threshold != 0) return 0;
    const auto bytes = static_cast<std::size_t>(chunks() * (p.key_tile + 1) * p.kernels->strip) * sizeof(Sum);
    return kernel_bytes + bytes <= kKeptLimitBytes ? bytes : 0;
  }

  /// Query tile t of head h of sequence b.
  void run(Index b, Index h, Index t, int worker) const {
    const Index q_begin = t * p.query_tile;
    const Index q_count = std::min(p.query_tile, p.q_len - q_begin);
    Sum row_lse[kMaxQueryTile];
    ForwardTile<T> tile{};
    tile.scores = p.scores(b, h);
    tile.v_head_dim = p.v_head_dim;
    tile.q_begin = q_begin;
    tile.q_count = q_count;
    tile.lse = row_lse;
    if (out.data() != nullptr) {
      tile.v = p.v.data() + b * p.v.stride(0) + h / p.group_size() * p.v.stride(1);
      tile.v_stride = p.v.stride(2);
      tile.out = out.data() + b * out.stride(0) + h * out.stride(1);
      tile.out_stride = out.stride(2);
    }
    if (weights.data() != nullptr) {
      tile.weights = weights.data() + b * weights.stride(0) + h * weights.stride(1);
      tile.weights_row_stride = weights.stride(2);
      tile.weights_applied = weights_applied;
    }
    std::byte* own = scratch + static_cast<std::size_t>(worker) * (scratch_bytes + capture_bytes);
    if (scratch_bytes > kernel_bytes) {
      tile.exponentials = reinterpret_cast<Sum*>(own + kernel_bytes);
      tile.chunk_shifts = tile.exponentials + chunks() * p.key_tile * p.kernels->strip;
    }
    if (capture != nullptr && capture->place_of(h) >= 0) {
      capture->forward(tile, b, h, own, own + scratch_bytes);
    } else if (p.cache == nullptr) {
      p.kernels->forward(tile, own);
    } else {
      p.cache_kernels->forward(tile, cached_head(*p.cache, b, h / p.group_size()), own);
    }
    if (p.rows_can_be_empty()) {
      if (tile.out != nullptr) fill_empty_out(p, b, h, q_begin, q_count, row_lse, tile.out, tile.out_stride);
      if (tile.weights != nullptr) {
        fill_empty_weights(p, b, h, q_begin, q_count, row_lse, weights_applied, tile.weights, tile.weights_row_stride);
      }
    }
    if (lse.data() == nullptr) return;
    for (Index i = 0; i < q_count; ++i) lse(b, h, q_begin + i) = row_lse[i];
  }
};

/// Every item, in one region.
template <class T>
void run_forward(ForwardJob<T> job, Context& context);

}  // namespace v0
}  // namespace qkv
