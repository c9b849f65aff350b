// Tiled forward of a part of a batch, as its work items see it, and what one item does. Not: which items there are and in which
// order (forward_driver.cc).
#pragma once

#include <algorithm>

#include "attention/capture/capture.h"
#include "attention/call/empty_rows.h"
#include "attention/call/problem.h"

namespace qkv::inline v0 {

inline constexpr Index kFetchedKeys = 1024;  // K and V of a head: half a megabyte at D 64, so they stay in L2
inline constexpr std::size_t kKeptLimitBytes = std::size_t{3} << 19;  // of a thread's 2 MiB; Tk = 8,192 in f32 fits

/// The state that all work items share.
template <class T>
struct ForwardJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<T, 4> out;                           // null: only weights
  View<Sum, 3> lse, lse_low;                // null: not wanted
  View<Sum, 4> weights;                     // null: not wanted
  Weights kind;                             // of weights
  CaptureJob<T>* capture;                   // null: nothing is captured
  std::size_t kernel_bytes, scratch_bytes;  // per worker: the kernel's, and with exponentials kept for weights
  std::size_t capture_bytes;                // per worker, after scratch_bytes

  ForwardJob(const Problem<T>& problem, const View<T, 4>& its_out, const View<Sum, 3>& its_lse, const View<Sum, 3>& its_lse_low,
             const View<Sum, 4>& its_weights, Weights its_kind, CaptureJob<T>* look)
      : p(problem),
        out(its_out),
        lse(its_lse),
        lse_low(its_lse_low),
        weights(its_weights),
        kind(its_kind),
        capture(look),
        kernel_bytes(p.forward_scratch_bytes()),
        scratch_bytes(kernel_bytes + kept_bytes()),
        capture_bytes(capture == nullptr ? 0 : capture->worker_bytes()) {}
  std::size_t worker_bytes() const { return scratch_bytes + capture_bytes; }

  Index chunks() const { return (p.kv_len + p.key_tile - 1) / p.key_tile; }

  /// Bytes per worker that save a second sweep over the keys; 0 if there is none to save or they would not stay in L2.
  std::size_t kept_bytes() const {
    // Under dropout the numbers that multiply v are not the weights wanted, or not bit-identical to softmax times factor.
    if (out.data() == nullptr || weights.data() == nullptr || p.dropout_threshold != 0 || kind == Weights::kScores) return 0;
    const auto bytes = static_cast<std::size_t>(chunks() * (p.key_tile + 1) * p.kernels->strip) * sizeof(Sum);
    return kernel_bytes + bytes <= kKeptLimitBytes ? bytes : 0;
  }

  /// A query tile of a head of a sequence.
  struct Place {
    Index b, h, t;
  };

  /// Whether heads come from memory: then a tile fetches the rows of the next one.
  bool fetches() const {
    const Index rows = p.num_heads * p.q_len + p.num_kv_heads * p.kv_len;
    return p.cache == nullptr && p.batch * rows * (p.head_dim + p.v_head_dim) * Index{sizeof(T)} > kFetchedBytes;
  }
  /// What `next` reads and writes and `now` does not; K and V only where they may stay in the cache until then.
  Ahead ahead_of(const Place& now, const Place& next) const {
    const Positions queries = p.tile(next.t);
    const Index q_begin = queries.begin - p.first_query, q_count = queries.end - queries.begin;
    const Index head = next.h / p.group_size();
    const bool reads_kv = (now.b != next.b || now.h / p.group_size() != head) && p.kv_len <= kFetchedKeys;
    const Index keys = reads_kv ? p.kv_len : 0;
    Ahead ahead{};
    add_rows_of(ahead, p.q, next.b, next.h, q_begin, q_count);
    add_rows_of(ahead, p.k, next.b, head, 0, keys);
    add_rows_of(ahead, p.v, next.b, head, 0, keys);
    add_rows_of(ahead, out, next.b, next.h, q_begin, q_count);
    return ahead;
  }

  /// Queries [q_begin, +q_count) of (b, h), counted in the whole problem. row_lse, row_low: [q_count].
  ForwardTile<Sum> tile_of(Index b, Index h, Index q_begin, Index q_count, Sum* row_lse, Sum* row_low) const {
    const Index first = q_begin - p.first_query;
    return {.scores = p.scores(b, h),
            .q = rows_at(p.q, b, h, first),
            .keys = p.keys(b, h / p.group_size()),
            .out = rows_at(out, b, h, first),
            .v_head_dim = p.v_head_dim,
            .q_begin = q_begin,
            .q_count = q_count,
            .lse = row_lse,
            .lse_low = lse_low.data() == nullptr ? nullptr : row_low,
            .row_max2 = nullptr,
            .row_sum = nullptr,
            .weights = weights.data() == nullptr ? nullptr : &weights(b, h, first, 0),
            .weights_row_stride = weights.stride(2),
            .weights_column_stride = weights.stride(3),
            .kind = kind,
            .exponentials = nullptr,
            .chunk_shifts = nullptr,
            .ahead = nullptr};
  }
  /// What is left of a tile that the kernel has computed: rows without keys, and lse.
  void take_rows(const ForwardTile<Sum>& tile, Index b, Index h) const {
    const Index q_begin = tile.q_begin, q_count = tile.q_count;
    if (p.rows_can_be_empty()) {
      if (tile.out.data != nullptr)
        fill_empty_out(p, b, h, q_begin, q_count, tile.lse, reinterpret_cast<T*>(tile.out.data), tile.out.stride);
      if (tile.weights != nullptr && kind != Weights::kScores) {
        fill_empty_weights(p, b, h, q_begin, q_count, tile.lse, kind == Weights::kApplied, tile.weights,
                           tile.weights_row_stride);
      }
    }
    const Index first = q_begin - p.first_query;
    for (Index i = 0; i < q_count && lse.data() != nullptr; ++i) lse(b, h, first + i) = tile.lse[i];
    for (Index i = 0; i < q_count && lse_low.data() != nullptr; ++i) lse_low(b, h, first + i) = tile.lse_low[i];
  }

  /// Runs a tile; `own` is scratch of worker_bytes(). `next`: what this worker will probably run then, or null.
  void run(const Place& now, const Place* next, std::byte* own) const {
    const Index b = now.b, h = now.h;
    Ahead ahead;
    if (next != nullptr) ahead = ahead_of(now, *next);
    const Positions queries = p.tile(now.t);
    Sum row_lse[kMaxQueryTile], row_low[kMaxQueryTile];
    ForwardTile<Sum> tile = tile_of(b, h, queries.begin, queries.end - queries.begin, row_lse, row_low);
    if (next != nullptr) tile.ahead = &ahead;
    if (scratch_bytes > kernel_bytes) {
      tile.exponentials = reinterpret_cast<Sum*>(own + kernel_bytes);
      tile.chunk_shifts = tile.exponentials + chunks() * p.key_tile * p.kernels->strip;
    }
    if (capture != nullptr && capture->place_of(h) >= 0) {
      capture->forward(tile, b, h, own, own + scratch_bytes);
    } else {
      run_forward(*p.kernels, tile, own);
    }
    take_rows(tile, b, h);
  }
};

}  // namespace qkv::inline v0
